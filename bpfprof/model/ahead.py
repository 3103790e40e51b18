"""Work that is done by two CPUs where numpy does it, which lets other threads run meanwhile."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import numpy.ma  # noqa: F401  # not by numpy.unique() in two threads: see commands/importing.py

Item = TypeVar("Item")
_SWITCH_S = 0.0005  # so long one that numpy lets go on may wait for one that runs Python: 5 ms are many calls of numpy


@contextlib.contextmanager
def second_thread() -> Iterator[ThreadPoolExecutor]:
    """One more thread, until its work is done."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        with ThreadPoolExecutor(1) as other:
            yield other
    finally:
        sys.setswitchinterval(before)


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same, of which another thread makes one while the one before it is used."""

    def next_one() -> list[Item]:
        return [*islice(items, 1)]

    with second_thread() as other:
        making = other.submit(next_one)
        while found := making.result():
            making = other.submit(next_one)
            yield found.pop()
