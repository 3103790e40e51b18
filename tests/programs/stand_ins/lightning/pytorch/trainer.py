"""A Trainer as Lightning has it: loops, a module with hooks, callbacks."""

from .loops.fetchers import _DataFetcher
from .loops.training_epoch_loop import _TrainingEpochLoop


class Trainer:
    def __init__(self, clock, callbacks):
        self.clock, self.callbacks = clock, callbacks

    def fit(self, module, loader, finished):
        self.module, self.optimizer = module, module.configure_optimizers()
        self._run_stage(loader, finished)

    def _run_stage(self, loader, finished):
        _TrainingEpochLoop(self).run(_DataFetcher(loader), finished)
