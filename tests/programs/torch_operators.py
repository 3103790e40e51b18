"""A training loop of PyTorch whose operators torch.profiler has measured: `transformer` or `convnet`, on one thread.

Before it prints "ready PID" it writes the profiler's self CPU time by operator, in microseconds, as JSON to --profile:
--turns times of --steps each, like those that follow until its input ends. Each line of that is answered as
token_ring.py does it: with steps as hops, seconds and cpu_ns of the end of the last one.
Needs torch, see tests/torch_root.py.
"""

import argparse
import ctypes
import json
import os
import select
import sys
import time

import torch
from token_ring import switch_count
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, shape):
        self.shape = shape

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        return torch.randn(self.shape), index % 10


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.embed, self.encode, self.out = nn.Linear(32, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 10)

    def forward(self, batch):
        return self.out(self.encode(self.embed(batch)).mean(1))


def convnet():
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10)),
    )


def keep_memory():
    """Takes 1 GiB that stays with the process. The profiler keeps its events among what each step frees, and made steps
    get 670 pages anew from the kernel, where without it they get none.
    """
    libc = ctypes.CDLL(None)
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD: malloc.h (glibc 2.36)
    assert libc.mallopt(trim_threshold, (1 << 31) - 1) and libc.mallopt(mmap_threshold, 32 << 20)
    del [bytearray(16 << 20) for _ in range(64)][:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["transformer", "convnet"])
    parser.add_argument("--profile", default=os.devnull)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--warm-up", type=int, default=3, help="steps before")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape, model = ((16, 32), Transformer()) if options.kind == "transformer" else ((3, 32, 32), convnet())
    optimizer, criterion = torch.optim.AdamW(model.parameters(), lr=1e-3), nn.CrossEntropyLoss()
    batches = iter(DataLoader(Samples(shape), batch_size=32, num_workers=options.workers))
    keep_memory()  # after workers were forked, with whom it would be shared

    def step():
        batch, label = next(batches)
        optimizer.zero_grad()
        criterion(model(batch), label).backward()
        optimizer.step()

    for _ in range(options.warm_up):
        step()
    turns = []
    for _ in range(options.turns):
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            for _ in range(options.steps):
                step()
        turns.append({each.key: each.self_cpu_time_total for each in profiled.key_averages()})
    with open(options.profile, "w") as file:
        json.dump(turns, file)
    print("ready", os.getpid(), flush=True)
    hops = 0
    while True:
        step()
        hops += 1
        if select.select([sys.stdin], [], [], 0)[0]:
            if not os.read(sys.stdin.fileno(), 1):
                return
            times = {"seconds": time.monotonic(), "cpu_ns": time.process_time_ns()}
            print(json.dumps({"hops": hops, **times, "switches": switch_count()}), flush=True)


if __name__ == "__main__":
    main()
