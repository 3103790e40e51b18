"""What a Trainer of Transformers does, by its names: epochs, gradient accumulation, a log and a checkpoint at times."""

import torch


class Trainer:
    def __init__(self, model, optimizer, criterion, loader, clock, folder, accumulation=2):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion
        self.loader, self.clock, self.folder, self.accumulation = loader, clock, folder, accumulation
        self.losses = []

    def train(self, finished):
        self._inner_training_loop(finished)

    def _inner_training_loop(self, finished):
        update = 0
        while not finished():
            epoch_iterator = iter(self.loader)
            for _ in range(len(self.loader) // self.accumulation):
                self.clock.step()
                batch_samples = self.get_batch_samples(epoch_iterator, self.accumulation)
                for step, inputs in enumerate(batch_samples):
                    loss = self.training_step(
                        self.model,
                        inputs,
                    )
                    self.losses.append(loss)
                    if step + 1 == len(batch_samples):
                        self.clock.at("optimizer")
                        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                        self.optimizer.step()
                        self.optimizer.zero_grad()
                update += 1
                self._maybe_log_save_evaluate(update)
                if finished():
                    return

    def get_batch_samples(self, epoch_iterator, count):
        self.clock.at("data wait")
        return [next(epoch_iterator) for _ in range(count)]

    def training_step(self, model, inputs):
        self.clock.at("forward")
        loss = self.compute_loss(model, inputs)
        self.clock.at("backward")
        loss.backward()
        return float(loss)

    def compute_loss(self, model, inputs):
        return self.criterion(model(inputs[0]), inputs[1]) / self.accumulation

    def _maybe_log_save_evaluate(self, update):
        if update % 5 == 0:
            self.clock.at("log")
            self.log({"loss": sum(self.losses) / len(self.losses)})
        if update % 10 == 0:
            self.clock.at("checkpoint")
            self._save_checkpoint(update)

    def log(self, logs):
        with open(self.folder + "/log", "a") as file:
            for name, value in logs.items():
                file.write(f"{name} {value}\n")
        sum(number * number for number in range(60_000))

    def _save_checkpoint(self, update):
        torch.save(self.model.state_dict(), self.folder + "/checkpoint")
