"""What of a process can be measured beside others, on the machine and in the process itself."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TRIES = 5


def least_cpu_s(work: Callable[[], object], enough_s: float) -> float:
    """CPU time of it: the least of up to five times, the last of which is the first below enough_s.

    Others on the machine, which share its caches and clock, make single ones longer and none shorter.
    """
    least_s = float("inf")
    for _ in range(_TRIES):
        begin_s = time.process_time()
        work()
        least_s = min(least_s, time.process_time() - begin_s)
        if least_s < enough_s:
            break
    return least_s


@contextmanager
def no_descriptor_more() -> Iterator[None]:
    """As many are open after it as before. Garbage of other tests, which may hold some, is not collected meanwhile."""
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        yield
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()
