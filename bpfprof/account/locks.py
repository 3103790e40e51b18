"""Rows of waits in futex() -> which lock each is for; in fcntl() -> which range of a file.

A futex tells a lock, but where each that waits has one of its own. From CPython 3.14 on that is so of every lock, and
the kernel side looks behind it (note_parked() in ebpf/objects.bpf.h). In all versions it is so in Condition.wait(),
which makes a lock for notify() to release (Lib/threading.py, 3.6 to 3.15): there `self` is told. Semaphores, events
and queues are made of conditions.
"""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.reasons import FUTEX_PRIVATE
from bpfprof.account.stack_functions import StackFunctions
from bpfprof.model.samples import PARKED_BIT, RANGE_BIT
from bpfprof.model.spans import CONDITION_LOCK, LOCK_ADDRESS, PARKED_LOCK, SHARED_LOCK

Bools = npt.NDArray[np.bool_]
_WAIT, _NOTIFY = ("threading.py", "wait"), ("threading.py", "notify")
_PARKED, _RANGE = np.uint64(1 << PARKED_BIT), np.uint64(1 << RANGE_BIT)
_FIRST_ADDRESS = np.uint64(1 << 12)  # what is below is no address of an object


def ranges_of(args: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Where in its file begins what each fcntl() waits for; 0 where that is not known, as of flock()."""
    begin = args[:, 2]
    return np.where(begin & _RANGE > 0, begin & np.uint64(LOCK_ADDRESS), np.uint64(0))


class Locks:
    """Of one recording."""

    def __init__(self, functions: StackFunctions) -> None:
        self._in_wait, self._in_notify = functions.with_innermost(_WAIT), functions.with_innermost(_NOTIFY)
        self._is_known = functions.with_innermost()

    def of(
        self, args: npt.NDArray[np.uint64], stack: npt.NDArray[np.uint32], waker_stack: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.uint64]:
        """As `lock` of spans. args: of the calls of futex()."""
        address, operation, first = args.T
        shared = np.where(operation & np.uint64(FUTEX_PRIVATE) == 0, np.uint64(SHARED_LOCK), np.uint64(0))
        parked = np.where(operation & _PARKED > 0, np.uint64(PARKED_LOCK), np.uint64(0))
        lock = np.where(address > 0, address | shared | parked, np.uint64(0))
        # At its end wait() takes the lock of the condition again, with an RLock in C: who ends that is not in notify().
        is_notified = self._in_wait[stack] & (self._in_notify | ~self._is_known)[waker_stack]
        condition = np.where(first >= _FIRST_ADDRESS, first, np.uint64(0)) | np.uint64(CONDITION_LOCK)
        return np.where(is_notified, condition, lock)
