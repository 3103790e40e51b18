"""Programs that wait for others like themselves: peers.py KIND [PORT].

Prints a line when it is under way; ends with its stdin. PORT is that of bottlenecks.py slow_sql. The line that a
verdict should name ends in `here: KIND`. `ranks` needs PyTorch.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from lifetime import die_with_input, die_with_parent


async def ask_for_ever() -> None:
    """A client without a library."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    while True:
        writer.write(b"SELECT 1")
        await writer.drain()
        await reader.read(100)  # here: streams


def streams() -> None:
    asyncio.run(ask_for_ever())


def turns() -> None:
    """Three processes, of which each works when the one before has told it to."""
    pipes = [os.pipe() for _ in range(3)]
    os.write(pipes[0][1], b"x")
    for number in (1, 2):
        if not os.fork():
            die_with_parent()
            take_turns(pipes[number][0], pipes[(number + 1) % 3][1])
    take_turns(pipes[0][0], pipes[1][1])


def take_turns(told: int, tell: int) -> None:
    while True:
        os.read(told, 1)
        for number in range(50_000):
            str(number)  # here: turns
        os.write(tell, b"x")


def ranks() -> None:
    """Three ranks of a training, of which one is slower than the others: its own code is to blame."""
    init = os.path.join(tempfile.mkdtemp(), "init")
    for rank in (1, 2):
        if not os.fork():
            die_with_parent()
            train(rank, init, lambda: None)
    train(0, init, lambda: print("ready", flush=True))


def train(rank: int, init: str, say: Callable[[], None]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{init}", rank=rank, world_size=3)
    gradient = torch.ones(1000)
    dist.all_reduce(gradient)
    say()
    while True:
        if rank == 1:
            load_slowly()
        dist.all_reduce(gradient)


def load_slowly() -> None:
    end = time.perf_counter() + 0.06
    while time.perf_counter() < end:
        str(list(range(1000)))  # here: ranks


FORK = ("turns", "ranks")  # before there are threads
SAYS = ("ranks",)  # itself that it is under way

if __name__ == "__main__":
    kind = globals()[sys.argv[1]]
    if sys.argv[1] in FORK:
        die_with_input()
    else:
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), name="stdin", daemon=True).start()
    if sys.argv[1] not in SAYS:
        print("ready", flush=True)
    kind()
