"""Tests whose answers are known, for `pytest --bpfprof`: run it with pytest, by its path.

SLOWER: so many times as long do the first three take. One fails, on purpose.
"""

from __future__ import annotations

import os
import threading
import time

TIMES = float(os.environ.get("SLOWER", "1"))


def burn(seconds: float) -> None:
    """On a CPU for so long, whatever else the machine does."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))


def test_burns() -> None:
    burn(0.3 * TIMES)


def test_sleeps() -> None:
    time.sleep(0.3 * TIMES)


def test_waits_for_a_lock() -> None:
    lock, is_held = threading.Lock(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            time.sleep(0.3 * TIMES)

    holder = threading.Thread(target=hold, name="holder")
    holder.start()
    is_held.wait()
    with lock:
        pass
    holder.join()


def test_fails() -> None:
    assert TIMES < 0


def test_is_short() -> None:
    pass
