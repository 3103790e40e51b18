"""Marks that a program makes, so that `bpfprof report --by step` has the exact times of its steps.

    from bpfprof.marks import mark

    for batch in loader:
        with mark("step"):
            ...

While nobody records, that does nothing. This file needs nothing but Python 3.8 or newer on Linux, also none of the rest
of bpfprof: it may be copied into a program.

How it works: marks are kept in a ring of memory that has a name, which who records looks for in /proc/PID/maps and
reads from outside. It sets one number there: until when it listens. After that, and without it, marks are not kept.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

MAGIC = 0x31304B52414D5042  # "BPMARK01"
NAME = "bpfprof-marks"
# In words of 8 bytes. The ring begins at FIRST; a slot is its number from 1 on, begin, end, thread, and a name.
LISTENS, COUNT, FIRST, SLOT, SLOTS = 1, 2, 8, 8, 8192
BYTES = 8 * (FIRST + SLOT * SLOTS)
NAME_BYTES = 32

__all__ = ["mark"]


class _Off:
    """What `with` calls, done in C: to empty what is empty, and to make an empty dict, which lets exceptions pass."""

    __slots__ = ()
    __enter__ = [].clear
    __exit__ = type.__prepare__


class _Mark:
    __slots__ = ("begin_ns", "name", "ring")

    def __init__(self, name: str, ring: _Ring) -> None:
        self.name, self.ring = name, ring

    def __enter__(self) -> None:
        self.begin_ns = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        self.ring.add(self.name, self.begin_ns, time.monotonic_ns())


class _Ring:
    """Words of shared memory that nobody else has."""

    def __init__(self) -> None:
        import mmap

        fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, BYTES)
            self.memory = mmap.mmap(fd, BYTES)
        finally:
            os.close(fd)
        self.words, self.numbers = memoryview(self.memory).cast("Q"), itertools.count()
        self.words[0] = MAGIC

    def add(self, name: str, begin_ns: int, end_ns: int) -> None:
        import _thread

        words = self.words
        if end_ns > words[LISTENS]:
            words[LISTENS] = 0  # who listened is gone
            return
        number = next(self.numbers)
        place = FIRST + SLOT * (number % SLOTS)
        words[place] = 0  # not whole
        words[place + 1], words[place + 2], words[place + 3] = begin_ns, end_ns, _thread.get_native_id()
        text = str(name).encode("utf-8", "replace")[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
        for word in range(4):
            words[place + 4 + word] = int.from_bytes(text[8 * word : 8 * word + 8], "little")
        words[place] = words[COUNT] = number + 1


def _flag(ring: _Ring) -> Any:
    """What is true while somebody listens."""
    from _ctypes import _SimpleCData

    word: Any = type("_Word", (_SimpleCData,), {"_type_": "Q"})
    return word.from_buffer(ring.memory, 8 * LISTENS)


def mark(name: str, _listens: Any = False, _ring: Any = None, _off: Any = _Off()) -> Any:  # noqa: B008
    """A context manager: from when to when something called `name` (at most 32 bytes are kept) went on."""
    return _Mark(name, _ring) if _listens else _off


def _begin() -> None:
    """Also of a child, which has memory of its own."""
    off = _Off()
    mark.__defaults__ = (False, None, off)  # no Linux, no memory, no ctypes: nothing is marked
    try:
        ring = _Ring()
        mark.__defaults__ = (_flag(ring), ring, off)
    except (OSError, AttributeError, ImportError):
        return


_begin()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
