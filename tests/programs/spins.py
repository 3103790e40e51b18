"""Waits on a CPU, or works, in a way that is known: LIBRARY KIND, until standard input is closed."""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time

PART_S = 0.05
library = ctypes.CDLL(sys.argv[1])
kind = sys.argv[2]


def python_spin() -> None:
    end = time.perf_counter() + PART_S
    while os.sched_yield() is None and time.perf_counter() < end:
        pass


def python_compute() -> None:
    value = 0
    end = time.thread_time() + PART_S
    while time.thread_time() < end:
        for _ in range(10000):
            value += 1


def python_polite() -> None:
    python_compute()
    os.sched_yield()


def in_c(name: str) -> None:
    function = getattr(library, name)
    function.argtypes = [ctypes.c_double]
    function(PART_S)


def is_over() -> bool:
    """Whether standard input is closed; asked without a thread, which would wait for something."""
    return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 4096)


print("ready", flush=True)
while not is_over():
    if kind.startswith("python_"):
        globals()[kind]()
    else:
        in_c(kind)
