"""Names of locks in memory that processes share, of this process's own memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile

import numpy as np
import pytest

from bpfprof.capture import shared_futexes
from bpfprof.capture.shared_futexes import SharedFutexes
from bpfprof.model.samples import WAIT_DTYPE
from bpfprof.model.syscalls import syscall_numbers

FUTEX, READ = (next(iter(syscall_numbers(name))) for name in ("futex", "read"))
PRIVATE = 128


class Names:
    def __init__(self) -> None:
        self.found: list[str] = []

    def place(self, name: str) -> int:
        self.found += [name] * (name not in self.found)
        return self.found.index(name) + 1


def places(shared: SharedFutexes, *waits: tuple[int, int, int], pid: int | None = None) -> list[int]:
    """Of waits by (call, address, operation)."""
    rows = np.zeros(len(waits), WAIT_DTYPE)
    for row, (call, address, operation) in zip(rows, waits):
        row["syscall"], row["args"] = call, (address, operation, 0)
    found: list[int] = shared.places(np.full(len(rows), pid or os.getpid(), np.uint32), rows).tolist()
    return found


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def test_the_same_memory_has_one_name_wherever_it_is() -> None:
    with tempfile.NamedTemporaryFile() as file:
        os.truncate(file.name, 1 << 16)
        first, second = (mmap.mmap(file.fileno(), 1 << 16) for _ in range(2))
        names = Names()
        shared = SharedFutexes(names.place)
        at = [address_of(memory) for memory in (first, second)]
        assert at[0] != at[1]
        one, same, other = places(shared, (FUTEX, at[0] + 64, 0), (FUTEX, at[1] + 64, 0), (FUTEX, at[1], 0))
        assert 0 < one == same != other > 0
        assert sorted(names.found) == sorted(
            f"{file.name} (inode {os.stat(file.name).st_ino}){at}" for at in ("", " at 64")
        )


def test_what_is_no_lock_of_several_has_none() -> None:
    names, private = Names(), ctypes.create_string_buffer(64)
    shared, anonymous = SharedFutexes(names.place), mmap.mmap(-1, 4096)
    own, other = ctypes.addressof(private), address_of(anonymous)
    found = places(shared, (FUTEX, own, 0), (FUTEX, other, PRIVATE), (READ, other, 0), (FUTEX, 8, 0), (FUTEX, other, 0))
    assert found == [0, 0, 0, 0, 1] and names.found[0].startswith("/dev/zero (inode ")
    assert places(SharedFutexes(names.place), (FUTEX, other, 0), pid=1 << 22) == [0]


def test_looks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that stands still: while the mappings are read, the next looks are earned."""
    now_s = [1000.0]
    monkeypatch.setattr(shared_futexes.time, "monotonic", lambda: now_s[0])
    anonymous = mmap.mmap(-1, 1 << 16)
    begin, shared = address_of(anonymous), SharedFutexes(Names().place)
    waits = [(FUTEX, begin + 8 * number, 0) for number in range(1000)]
    assert sum(place > 0 for place in places(shared, *waits)) == 200
    now_s[0] += 1
    assert sum(place > 0 for place in places(shared, *waits)) == 220
