"""Training loops of PyTorch that one known thing bounds, and a healthy one: loops.py KIND [LIBRARY | CGROUP].

Prints "ready" when it is under way; ends with its stdin. The line that a verdict should name ends in `here: KIND`.
LIBRARY: for `device`, a shared library in place of CUDA's (cuda.c). CGROUP: for `checkpoint`, a control group for which
the disk is slow.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from lifetime import die_with_input, die_with_parent
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORKERS = 2
STEPS_BEFORE = 3  # it is under way


class Samples(Dataset):
    """decode_s: how long the decoding of one takes."""

    def __init__(self, decode_s: float = 0.0) -> None:
        self.decode_s = decode_s

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.decode_s:
            decode(self.decode_s)
        return torch.ones(64)


def decode(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        str(list(range(1000)))  # here: data gil


class Loop:
    """A model and what a step of it does."""

    def __init__(self, width: int = 64, batch: int = 8, decode_s: float = 0.0, workers: int = 0) -> None:
        self.model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        loader = DataLoader(Samples(decode_s), batch_size=batch, num_workers=workers)
        self.batches, self.steps = iter(loader), 0

    def step(self) -> None:
        batch = next(self.batches)
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()  # here: healthy oversubscribed
        loss.backward()  # here: healthy oversubscribed
        self.optimizer.step()
        self.steps += 1
        if self.steps == STEPS_BEFORE and dist_rank() == 0:
            print("ready", flush=True)


def dist_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def data() -> None:
    loop = Loop(decode_s=0.005, workers=WORKERS)
    while True:
        loop.step()


def gil() -> None:
    """Loaders that are threads."""
    for _ in range(4):
        threading.Thread(target=lambda: [decode(0.01) for _ in iter(int, 1)], daemon=True).start()
    loop = Loop()
    while True:
        loop.step()
        decode(0.002)


def oversubscribed() -> None:
    torch.set_num_threads(16)
    loop = Loop(width=2048, batch=256)
    while True:
        loop.step()


def device() -> None:
    """Each step is given to a device, and waited for."""
    cuda = ctypes.CDLL(sys.argv[2])
    loop = Loop()
    while True:
        loop.step()
        cuda.cudaLaunchKernel(20_000)
        cuda.cudaStreamSynchronize(None)  # here: device


def communication() -> None:
    """Two ranks, of which the other answers late: it is not recorded."""
    init = os.path.join(tempfile.mkdtemp(), "init")
    rank = 0 if os.fork() else 1
    if rank:
        die_with_parent()
    dist.init_process_group("gloo", init_method=f"file://{init}", rank=rank, world_size=2)
    loop, gradient = Loop(), torch.ones(1000)
    while True:
        loop.step()
        if rank:
            time.sleep(0.03)
        dist.all_reduce(gradient)  # here: communication


def checkpoint() -> None:
    """Each step is kept, on a slow disk."""
    with open(os.path.join(sys.argv[2], "cgroup.procs"), "w") as cgroup:
        cgroup.write(str(os.getpid()))
    loop = Loop(width=4096)
    with tempfile.NamedTemporaryFile(dir=".") as file:
        while True:
            loop.step()
            torch.save(loop.model.state_dict(), file.name)
            os.fsync(file.fileno())  # here: checkpoint


def operator() -> None:
    loop, scores = Loop(), torch.rand(200_000)
    while True:
        loop.step()
        scores.sort()  # here: operator


def healthy() -> None:
    """The model computes, and the workers have the next batches ready, for half as much work as they have time for."""
    shape, batch = {"width": 4096, "batch": 256}, 256
    loop = Loop(**shape)
    for _ in range(STEPS_BEFORE - 1):
        begun = time.thread_time()
        loop.step()
        step_s = time.thread_time() - begun
    loop = Loop(**shape, decode_s=step_s / 2 / batch, workers=WORKERS)
    while True:
        loop.step()


KINDS = {it.__name__: it for it in (data, gil, oversubscribed, device, communication, checkpoint, operator, healthy)}

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    die_with_input()
    KINDS[sys.argv[1]]()
