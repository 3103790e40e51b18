"""A training loop of PyTorch: a DataLoader with two worker processes, and backward passes in C++ threads of autograd.

Samples are made in `augment`, in the workers. The CPU's backward pass runs in the thread that asks for it, but passes
within passes beyond 60 go to threads of autograd's own (MAX_DEPTH, torch/csrc/autograd/engine.h, v2.6.0): so the
innermost one, `deepest`, runs in one of these. Prints "ready PID" when the first step is done. Needs torch.
"""

import argparse
import os
import time

import torch
from lifetime import finished
from torch.utils.data import DataLoader, Dataset

DEPTH = 64


class Samples(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        return augment(index)


def augment(index):
    total = 0
    for number in range(3000):
        total += number % (index + 1)
    return torch.full((64,), float(total % 7))


class Nested(torch.autograd.Function):
    @staticmethod
    def forward(context, value, depth):
        context.depth = depth
        return value * 2

    @staticmethod
    def backward(context, gradient):
        if context.depth:
            with torch.enable_grad():
                nested_pass(context.depth - 1)
        else:
            deepest()
        return gradient * 2, None


def nested_pass(depth):
    Nested.apply(torch.ones(4, requires_grad=True), depth).sum().backward()


def deepest():
    for _ in range(2000000):
        pass


def step(model, batch):
    model(batch).square().mean().backward()
    for parameter in model.parameters():
        parameter.grad = None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    torch.set_num_threads(2)
    model = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
    started = time.monotonic()
    for number, batch in enumerate(DataLoader(Samples(), batch_size=32, num_workers=2)):
        step(model, batch)
        if not number % 10:  # the main thread's stack is deeper than bpfprof follows then
            nested_pass(DEPTH)
        if not number:
            print("ready", os.getpid(), flush=True)
        if finished(options.seconds, started):
            break


if __name__ == "__main__":
    main()
