"""A checkpoint each so many batches."""

import torch


class ModelCheckpoint:
    def __init__(self, folder, every):
        self.folder, self.every = folder, every

    def on_train_batch_end(self, trainer, batch_idx):
        if batch_idx % self.every == 0:
            trainer.clock.at("checkpoint")
            torch.save(trainer.module.state_dict(), self.folder + "/checkpoint")
            trainer.clock.at("other")
