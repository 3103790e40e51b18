"""Training loops of different style that know their own clocks: training_styles.py KIND --told FILE [--rounds N].

`plain`, `trainer` (as Transformers has it), `lightning` and `generator` need torch, see tests/torch_root.py; `native`
is a front in Python of a worker in C++; `compiled` needs jax and optax: a step is one call. Prints "ready PID" after
some steps; when its standard input ends it writes FILE: for each step when it began and how long it was in each phase.
--rounds: of work for each sample.
"""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lifetime import finished
from step_clock import Clock

sys.path.insert(0, str(Path(__file__).with_name("stand_ins")))
WARM_STEPS = 3
OPTIONS = argparse.Namespace()


class Run:
    """Whether it is to end, asked once a step: with its standard input."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        if self.count == WARM_STEPS:
            print("ready", os.getpid(), flush=True)
        return self.count > WARM_STEPS and finished(None, 0.0)


def parts():
    """(model, optimizer, criterion, loader)"""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):
        def __len__(self):
            return 1 << 11

        def __getitem__(self, index):
            return torch.sin(torch.arange(256.0) * (index + sum(range(OPTIONS.rounds)))), index % 10

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, optimizer, nn.CrossEntropyLoss(), DataLoader(Samples(), batch_size=64)


def plain(clock, ends, folder):
    model, optimizer, criterion, loader = parts()
    while True:
        batches = iter(loader)
        for _ in range(len(loader)):
            clock.step()
            clock.at("data wait")
            samples, labels = next(batches)
            clock.at("optimizer")
            optimizer.zero_grad()
            clock.at("forward")
            loss = criterion(model(samples), labels)
            clock.at("backward")
            loss.backward()
            clock.at("optimizer")
            optimizer.step()
            clock.at("other")
            if ends():
                return


def trainer(clock, ends, folder):
    from transformers.trainer import Trainer

    Trainer(*parts(), clock, folder).train(ends)


def lightning(clock, ends, folder):
    from lightning.pytorch.callbacks.model_checkpoint import ModelCheckpoint
    from lightning.pytorch.trainer import Trainer

    model, optimizer, criterion, loader = parts()

    class Module:
        def configure_optimizers(self):
            return optimizer

        def training_step(self, batch, batch_idx):
            return criterion(model(batch[0]), batch[1])

        def optimizer_step(self, batch_idx, optimizer, closure):
            optimizer.step(closure)

        def backward(self, loss):
            loss.backward()

        def state_dict(self):
            return model.state_dict()

    Trainer(clock, [ModelCheckpoint(folder, 10)]).fit(Module(), loader, ends)


def generator(clock, ends, folder):
    def losses():
        model, optimizer, criterion, loader = parts()
        while True:
            for samples, labels in batches(loader):
                clock.at("forward")
                loss = criterion(model(samples), labels)
                clock.at("backward")
                loss.backward()
                clock.at("optimizer")
                optimizer.step()
                optimizer.zero_grad()
                clock.at("other")
                yield loss

    def batches(loader):
        waiting = iter(loader)
        while True:
            clock.at("data wait")
            try:
                batch = next(waiting)
            except StopIteration:
                return
            clock.at("other")
            yield batch

    clock.step()
    for number, loss in enumerate(losses()):
        clock.at("log")
        log_metrics(folder, number, float(loss.detach()))
        clock.at("other")
        if ends():
            return
        clock.step()


def log_metrics(folder, number, loss):
    with open(folder + "/log", "a") as file:
        file.write(f"{number} {loss}\n")
        file.flush()
        os.fsync(file.fileno())


class Engine:
    """The front of step_worker.cpp."""

    def __init__(self, folder):
        source, library = Path(__file__).with_name("step_worker.cpp"), folder + "/libstep_worker.so"
        subprocess.run(["c++", "-g", "-O1", "-shared", "-fPIC", "-pthread", "-o", library, str(source)], check=True)
        self.library = ctypes.CDLL(library)
        self.library.worker_start()

    def next_batch(self):
        self.library.worker_run(3_000, 9_000)

    def forward(self):
        self.library.worker_run(12_000, 2_000)

    def backward(self):
        self.library.worker_run(25_000, 0)

    def all_reduce(self):
        self.library.worker_run(0, 8_000)

    def update_weights(self):
        self.library.worker_run(6_000, 0)


def native(clock, ends, folder):
    engine = Engine(folder)
    while not ends():
        clock.step()
        clock.at("data wait")
        engine.next_batch()
        clock.at("forward")
        engine.forward()
        clock.at("backward")
        engine.backward()
        clock.at("communication")
        engine.all_reduce()
        clock.at("optimizer")
        engine.update_weights()
        clock.at("other")


class Batches:
    """A user's own iterator, which makes batches."""

    def __init__(self):
        import numpy

        self.numpy, self.draws = numpy, numpy.random.default_rng(0)

    def __iter__(self):
        return self

    def __next__(self):
        noise = self.draws.standard_normal((512, 256)).cumsum(axis=1)
        return self.numpy.sin(noise).astype("float32"), self.draws.integers(0, 10, 512)


def compiled(clock, ends, folder):
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    import jax
    import optax
    from jax import numpy

    optimizer, sizes = optax.adam(1e-3), ((256, 1024), (1024, 1024), (1024, 10))
    keys = jax.random.split(jax.random.PRNGKey(0), len(sizes))
    layers = [jax.random.normal(key, size) / 30 for key, size in zip(keys, sizes)]

    def loss_of(layers, samples, labels):
        for layer in layers[:-1]:
            samples = numpy.maximum(samples @ layer, 0)
        return optax.softmax_cross_entropy_with_integer_labels(samples @ layers[-1], labels).mean()

    @jax.jit
    def train_step(layers, state, samples, labels):
        loss, gradients = jax.value_and_grad(loss_of)(layers, samples, labels)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(layers, updates), state, loss

    state, batches = optimizer.init(layers), Batches()
    while not ends():
        clock.step()
        clock.at("data wait")
        samples, labels = next(batches)
        clock.at("other")
        layers, state, loss = train_step(layers, state, samples, labels)
        float(loss)


KINDS = {each.__name__: each for each in (plain, trainer, lightning, generator, native, compiled)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=[*KINDS])
    parser.add_argument("--told", required=True)
    parser.add_argument("--rounds", type=int, default=4000)
    parser.parse_args(namespace=OPTIONS)
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="training_styles-") as folder:
        KINDS[OPTIONS.kind](clock, Run(), folder)
    clock.write(OPTIONS.told)
    print("written", time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    main()
