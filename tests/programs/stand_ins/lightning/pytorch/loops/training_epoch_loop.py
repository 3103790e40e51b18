"""An epoch as Lightning runs it: the optimizer calls a closure, which is the forward and the backward pass."""


class _TrainingEpochLoop:
    def __init__(self, trainer):
        self.trainer, self.batch_idx = trainer, 0

    def run(self, data_fetcher, finished):
        while not finished():
            self.advance(data_fetcher)
            self.on_advance_end()

    def advance(self, data_fetcher):
        trainer = self.trainer
        trainer.clock.step()
        trainer.clock.at("data wait")
        batch = next(data_fetcher)
        trainer.clock.at("optimizer")
        trainer.module.optimizer_step(self.batch_idx, trainer.optimizer, self._make_closure(batch))
        trainer.clock.at("other")
        self.batch_idx += 1

    def on_advance_end(self):
        for callback in self.trainer.callbacks:
            callback.on_train_batch_end(self.trainer, self.batch_idx)

    def _make_closure(self, batch):
        trainer = self.trainer

        def closure():
            trainer.clock.at("optimizer")
            trainer.optimizer.zero_grad()
            trainer.clock.at("forward")
            loss = trainer.module.training_step(batch, self.batch_idx)
            trainer.clock.at("backward")
            trainer.module.backward(loss)
            trainer.clock.at("optimizer")
            return loss

        return closure
