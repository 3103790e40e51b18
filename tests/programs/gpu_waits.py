"""Computes for 4 ms and calls FUNCTION of a library in place of CUDA's (gpu.c) for 16 ms, again and again.

Until standard input is closed; then prints how much of the time between two lines of it that call had.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time

call = getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])
is_over = threading.Event()


def compute() -> None:
    end = time.thread_time() + 0.004
    while time.thread_time() < end:
        pass


def call_library() -> None:
    call(16_000)


def listen() -> None:
    """A line begins the time that is told, the next one ends it."""
    for _ in range(2):
        sys.stdin.readline()
        marks.append((time.perf_counter(), in_call))
    sys.stdin.read()
    is_over.set()


marks: list[tuple[float, float]] = []
in_call = 0.0
threading.Thread(target=listen, daemon=True).start()
print("ready", flush=True)
while not is_over.is_set():
    compute()
    before = time.perf_counter()
    call_library()
    in_call += time.perf_counter() - before
(begin, at_begin), (end, at_end) = marks
print((at_end - at_begin) / (end - begin), flush=True)
