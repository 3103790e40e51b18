"""A small training loop of the usual kind: data-loader threads, forward, backward, an all-reduce in C, an optimizer.

The all-reduce (allreduce.c, compiled at start) blocks the main thread on a thread that runs no Python, as collective
communication libraries do. Without a C compiler a Python thread takes its place, and standard error says so.

Prints `ready PID` after the first step, and one line of JSON at the end. Runs for --seconds, or until standard input
closes. Needs numpy.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is loaded; figures can be compared between machines

import argparse
import ctypes
import json
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

import numpy as np
from lifetime import finished

FEATURES, HIDDEN, CLASSES, BATCH = 256, 384, 16, 96
RESOLUTION = 8  # raw values for each feature
WIRE_TIME_NS = 6_000_000
LEARNING_RATE = 0.05


class Dataset:
    """Compressed records in memory, as they would be read from a file."""

    def __init__(self, count, generator):
        directions = generator.standard_normal((FEATURES, CLASSES))
        self.records = [self.make_record(generator, directions) for _ in range(count)]

    @staticmethod
    def make_record(generator, directions):
        raw = generator.integers(0, 16, (BATCH, FEATURES * RESOLUTION)).astype(np.uint8)
        labels = (shrink(raw) @ directions).argmax(axis=1)
        header = json.dumps({"shape": raw.shape, "labels": labels.tolist()}).encode()
        return zlib.compress(header), zlib.compress(raw.tobytes())

    def decode(self, index):
        """Samples (float32, one a row) and their labels."""
        header, payload = self.records[index % len(self.records)]
        description = json.loads(zlib.decompress(header))
        raw = np.frombuffer(zlib.decompress(payload), np.uint8).reshape(description["shape"])
        samples = shrink(raw)
        augment(samples, random.Random(index))
        return normalize(samples), np.asarray(description["labels"])


def shrink(raw):
    return raw.reshape(len(raw), FEATURES, RESOLUTION).mean(axis=2, dtype=np.float32)


def augment(samples, generator):
    """Noise, drawn in Python on purpose: this is the loader's share of the GIL."""
    for sample in samples:
        sample += [generator.random() * 0.01 for _ in range(FEATURES // 8)] * 8


def normalize(samples):
    return (samples - samples.mean(axis=0)) / (samples.std(axis=0) + 1e-6)


class DataLoader:
    """Threads that decode ahead of the training loop, into a queue that holds few batches."""

    def __init__(self, dataset, thread_count):
        self.dataset = dataset
        self.batches = queue.Queue(maxsize=2)
        for number in range(thread_count):
            name = f"loader-{number}"
            threading.Thread(target=self.load, args=(name, number, thread_count), name=name, daemon=True).start()

    def load(self, name, index, step):
        name_thread(name)
        while True:
            self.batches.put(self.dataset.decode(index))
            index += step

    def next_batch(self):
        return self.batches.get()


class MultilayerPerceptron:
    def __init__(self, generator):
        sizes = [FEATURES, HIDDEN, HIDDEN, CLASSES]
        self.weights = [
            (generator.standard_normal(shape) * np.sqrt(2 / shape[0])).astype(np.float32)
            for shape in zip(sizes, sizes[1:])
        ]

    def forward(self, samples):
        """Activations of every layer, and the probability of each class."""
        activations = [samples.astype(np.float32)]
        for weight in self.weights[:-1]:
            activations.append(np.maximum(activations[-1] @ weight, 0))
        return activations, softmax(activations[-1] @ self.weights[-1])

    def backward(self, activations, probabilities, labels):
        """One gradient a weight matrix."""
        error = probabilities.copy()
        error[np.arange(len(labels)), labels] -= 1
        error /= len(labels)
        gradients = []
        for activation, weight in zip(reversed(activations), reversed(self.weights)):
            gradients.append(activation.T @ error)
            error = (error @ weight.T) * (activation > 0)
        return gradients[::-1]


def softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def cross_entropy(probabilities, labels):
    return float(-np.log(probabilities[np.arange(len(labels)), labels] + 1e-9).mean())


class Momentum:
    def __init__(self, weights):
        self.velocities = [np.zeros_like(weight) for weight in weights]

    def step(self, weights, gradients):
        for weight, velocity, gradient in zip(weights, self.velocities, gradients):
            velocity *= 0.9
            velocity += gradient
            weight -= LEARNING_RATE * velocity


class NativeAllReduce:
    """allreduce.c; its threads live as long as the process."""

    def __init__(self, directory):
        source, library = Path(__file__).with_name("allreduce.c"), Path(directory, "liballreduce.so")
        command = [os.environ.get("CC", "cc"), "-g", "-O2", "-shared", "-fPIC", "-pthread", "-o", library, source]
        subprocess.run(command, check=True)
        self.library = ctypes.CDLL(str(library))
        self.library.allreduce.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        if self.library.allreduce_start(ctypes.c_long(WIRE_TIME_NS)) != 0:
            raise OSError("the all-reduce threads did not start")

    def average(self, gradient):
        self.library.allreduce(gradient.ctypes.data, gradient.size)


class PythonAllReduce:
    """The same waits without a C compiler."""

    def __init__(self):
        self.requests, self.answers = queue.Queue(), queue.Queue()
        threading.Thread(target=self.work, name="allreduce", daemon=True).start()

    def work(self):
        name_thread("allreduce")
        while True:
            gradient = self.requests.get()
            gradient *= 1.0
            time.sleep(WIRE_TIME_NS / 1e9)
            self.answers.put(None)

    def average(self, gradient):
        self.requests.put(gradient)
        self.answers.get()


def make_all_reduce(directory):
    try:
        return NativeAllReduce(directory)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"training_loop: no native all-reduce ({error}); a Python thread takes its place", file=sys.stderr)
        return PythonAllReduce()


def name_thread(name):
    """Gives the calling thread the name that the kernel shows."""
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name[:15])


def train_step(model, optimizer, all_reduce, loader):
    samples, labels = loader.next_batch()
    activations, probabilities = model.forward(samples)
    gradients = model.backward(activations, probabilities, labels)
    bucket = np.concatenate([gradient.ravel() for gradient in gradients])
    all_reduce.average(bucket)
    ends = np.cumsum([gradient.size for gradient in gradients])[:-1]
    averaged = [part.reshape(gradient.shape) for part, gradient in zip(np.split(bucket, ends), gradients)]
    optimizer.step(model.weights, averaged)
    return cross_entropy(probabilities, labels)


def train(seconds, directory):
    generator = np.random.default_rng(1)
    loader = DataLoader(Dataset(64, generator), thread_count=2)
    model = MultilayerPerceptron(generator)
    optimizer = Momentum(model.weights)
    all_reduce = make_all_reduce(directory)
    first_loss = loss = train_step(model, optimizer, all_reduce, loader)
    print(f"ready {os.getpid()}", flush=True)
    started, steps = time.monotonic(), 0
    while not finished(seconds, started):
        loss = train_step(model, optimizer, all_reduce, loader)
        steps += 1
    took = time.monotonic() - started
    print(json.dumps({"steps": steps, "seconds": took, "first_loss": first_loss, "loss": loss}), flush=True)


def main():
    arguments = argparse.ArgumentParser(description="A small training loop.")
    arguments.add_argument("--seconds", type=float, help="run so long; default: until standard input closes")
    seconds = arguments.parse_args().seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the directory is removed
    with tempfile.TemporaryDirectory(prefix="training_loop-") as directory:
        train(seconds, directory)


if __name__ == "__main__":
    main()
