"""Ranks of a training with torch.distributed over gloo, one of which is slow: ranks.py KIND COUNT SLOW.

The launcher starts COUNT processes with RANK in their environment, prints "ready" and their pids when they are under
way, and ends with its stdin. Rank SLOW alone is slowed: by KIND `hog` (busy processes on the CPU that only it has),
`data` (a slow data set), `collection` (a data set that collects garbage), `backward` (a hook that sleeps), `disk` (it
writes through to the disk), `limit` (the control group whose folder is in LIMITED), `link` (LINK is what link.py
prints: it is behind that link), or not (`none`). Each writes a file times-RANK in the folder TIMES, if there is one:
for each step seconds, as STEP has them.
"""

from __future__ import annotations

import gc
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time

from lifetime import die_with_input, die_with_parent

STEPS_BEFORE = 5
HOGS = 4  # for each rank that the slow one is compared with: those share a CPU
# When the rank comes to each collective of a step, on CLOCK_MONOTONIC; for how long gloo's threads, which carry it out,
# wait for a CPU meanwhile: the one that does most, and all of them, some of whom do at the same time.
STEP = struct.Struct("4d4d4d")
BATCH = 8
WRITTEN = 48 << 20
KEPT = 200_000  # objects that a collection looks at


def launch(kind: str, count: int, slow: int) -> None:
    if kind == "hog" and not os.geteuid():
        os.nice(-10)  # of it all, so that what else runs here has no part in it
    init = os.path.join(tempfile.mkdtemp(), "init")
    ranks = []
    for rank in range(count):
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        environment |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, kind, str(count), str(slow), init]
        if kind == "link":
            _, near, namespace, far = os.environ["LINK"].split()
            environment["GLOO_SOCKET_IFNAME"] = far if rank == slow else near
            command = ["ip", "netns", "exec", namespace, *command] if rank == slow else command
        ranks.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        )
    for it in ranks:
        assert it.stdout is not None and it.stdout.readline() == "ready\n"
    if kind == "hog":
        for _ in range(HOGS * (count - 1)):
            if not os.fork():
                die_with_parent()
                os.sched_setaffinity(0, {cpu_of(slow, slow)})
                while True:
                    pass
    print("ready", *[it.pid for it in ranks], flush=True)
    for it in ranks:
        it.wait()


def cpu_of(rank: int, slow: int) -> int:
    """The slow one has the last CPU for itself."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[-1] if rank == slow else cpus[rank % (len(cpus) - 1 or 1)]


class Samples:
    """A data set."""

    def __init__(self, decode_s: float, collections: int) -> None:
        self.decode_s, self.collections = decode_s, collections
        self.kept = [[] for _ in range(KEPT if collections else 0)]

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> float:
        if self.decode_s:
            decode(self.decode_s)
        for _ in range(0 if index % BATCH else self.collections):
            gc.collect()
        return 1.0


def decode(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        str(list(range(1000)))


def doze(seconds: float) -> None:
    time.sleep(seconds)


def write_through(file: int, blocks: mmap.mmap, times: int) -> None:
    for _ in range(times):
        os.pwrite(file, blocks, 0)


class OtherThreads:
    """Of this process; those that are there now."""

    def __init__(self) -> None:
        folder = "/proc/self/task"
        tids = {*os.listdir(folder)} - {str(os.getpid())}
        self.files = [os.open(f"{folder}/{tid}/schedstat", os.O_RDONLY) for tid in tids]

    def waited_s(self) -> list[float]:
        """How long each has waited for a CPU so far (Documentation/scheduler/sched-stats.rst)."""
        return [int(os.pread(file, 100, 0).split()[1]) / 1e9 for file in self.files]


def train(kind: str, count: int, slow: int, init: str) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader

    rank = int(os.environ["RANK"])
    slowness = count - 1  # so many others share a CPU
    width = 384 if kind == "hog" else 192  # a hog waits its turn where bursts are short
    kind = kind if rank == slow else "none"
    os.sched_setaffinity(0, {cpu_of(rank, slow)})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{init}", rank=rank, world_size=count)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    if kind == "backward":
        model[0].weight.register_hook(lambda _gradient: doze(0.03 * slowness))
    path = f"written-{rank}"
    written = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT | os.O_SYNC)
    os.unlink(path)
    blocks = mmap.mmap(-1, WRITTEN)  # begins with a page, as O_DIRECT wants it
    blocks.write(os.urandom(WRITTEN))
    if kind == "limit":
        with open(os.path.join(os.environ["LIMITED"], "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))
    samples = Samples(0.004 * slowness if kind == "data" else 0, 2 * slowness if kind == "collection" else 0)
    batches = iter(DataLoader(samples, batch_size=BATCH))
    work = torch.ones(width, 64)
    folder = os.environ.get("TIMES")
    times = os.open(f"{folder}/times-{rank}" if folder else os.devnull, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for step in range(1 << 30):
        if step == STEPS_BEFORE:
            print("ready", flush=True)
        if step <= STEPS_BEFORE:
            others = OtherThreads()
        batch = next(batches)
        optimizer.zero_grad()
        loss = model(work * batch.mean().float()).square().mean()
        loss.backward()
        reached_s, most_s, all_s = [], [], []
        for parameter in model.parameters():
            before_s = others.waited_s()
            reached_s.append(time.monotonic())
            dist.all_reduce(parameter.grad)
            waited_s = [after - before for before, after in zip(before_s, others.waited_s())]
            most_s.append(max(waited_s))
            all_s.append(sum(waited_s))
        os.write(times, STEP.pack(*reached_s, *most_s, *all_s))
        optimizer.step()
        if kind == "disk":
            write_through(written, blocks, slowness)


if __name__ == "__main__":
    if len(sys.argv) > 4:
        train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        die_with_input()
        launch(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
