"""Locks in memory that processes share: the address that a thread sleeps at in, a name that is the same in all out.

A process may have the memory elsewhere than another. The kernel tells such a lock by the file and the place in it
(get_futex_key(), kernel/futex/core.c); the name is made of those. Memory without a file has one too, /dev/zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.reasons import FUTEX_PRIVATE
from bpfprof.errors import TargetError
from bpfprof.model.grouping import group_numbers
from bpfprof.model.ids import Pid
from bpfprof.model.syscalls import syscall_numbers
from bpfprof.proc.maps import read_maps
from bpfprof.proc.text import with_controls_replaced

_FUTEX = next(iter(syscall_numbers("futex")))
_KNOWN_LIMIT = 10_000
_LOOKS_AT_ONCE, _LOOKS_A_SECOND = 200.0, 20.0  # at mappings, which may be many


class SharedFutexes:
    """Of one recording. `place`: of a name in its table of objects. What is found of an address is kept."""

    def __init__(self, place: Callable[[str], int]) -> None:
        self._place = place
        self._known: dict[tuple[int, int], int] = {}
        self._looks_left, self._since_s = _LOOKS_AT_ONCE, time.monotonic()

    def places(self, pids: npt.NDArray[np.uint32], waits: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
        """For each wait (fields syscall, args) for one; 0: it is for none, or not known yet."""
        places = np.zeros(len(waits), np.uint32)
        is_shared = (waits["syscall"] == _FUTEX) & (waits["args"][:, 1] & np.uint64(FUTEX_PRIVATE) == 0)
        chosen = np.flatnonzero(is_shared)
        if len(chosen):
            first, number = group_numbers([pids[chosen], waits["args"][chosen, 0]])
            keys = zip(pids[chosen][first].tolist(), waits["args"][chosen, 0][first].tolist())
            places[chosen] = np.array([self._of(*key) for key in keys], np.uint32)[number]
        return places

    def _of(self, pid: int, address: int) -> int:
        if (pid, address) not in self._known:
            if not self._may_look():
                return 0
            if len(self._known) >= _KNOWN_LIMIT:
                self._known.clear()
            self._known[pid, address] = self._look(Pid(pid), address)
        return self._known[pid, address]

    def _may_look(self) -> bool:
        now_s = time.monotonic()
        left = min(_LOOKS_AT_ONCE, self._looks_left + (now_s - self._since_s) * _LOOKS_A_SECOND)
        self._looks_left, self._since_s = max(left - 1, 0.0), now_s
        return left >= 1

    def _look(self, pid: Pid, address: int) -> int:
        try:
            found = next((mapping for mapping in read_maps(pid) if mapping.start <= address < mapping.end), None)
        except TargetError:
            return 0
        if found is None or not found.is_file or "s" not in found.permissions:
            return 0
        offset = address - found.start + found.offset
        path = with_controls_replaced(found.path.encode(errors="surrogateescape").decode(errors="replace"))
        return self._place(f"{path} (inode {found.inode})" + f" at {offset}" * (offset > 0))
