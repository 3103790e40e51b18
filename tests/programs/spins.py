"""Waits on a CPU, or works, in a way that is known: LIBRARY KIND, until standard input is closed.

Of `half` it says then which part of its CPU time it waited, between the first two lines that it was told. `blas` needs
numpy.
"""

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


spent_s = {"compute": 0.0, "yields": 0.0}


def half() -> None:
    for name in spent_s:
        begin = time.thread_time()
        in_c(name)
        spent_s[name] += (time.thread_time() - begin) * (lines == 1)


if kind == "blas":
    import numpy

    matrix = numpy.ones((400, 400))


def blas() -> None:
    """A product in OpenBLAS's threads takes a tenth of the time of what follows."""
    matrix @ matrix
    python_compute()


lines = 0


def is_over() -> bool:
    """Whether standard input is closed; asked without a thread, which would wait for something."""
    global lines
    if not select.select([0], [], [], 0)[0]:
        return False
    told = os.read(0, 4096)
    lines += told.count(b"\n")
    return not told


print("ready", flush=True)
while not is_over():
    if kind in ("half", "blas") or kind.startswith("python_"):
        globals()[kind]()
    else:
        in_c(kind)
if kind == "half":
    print(spent_s["yields"] / sum(spent_s.values()), flush=True)
