"""Spans of a Profile -> the time of its threads, shared out by what it was spent on, as rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.grouping import group_numbers
from bpfprof.model.profile import Profile
from bpfprof.model.rows import picked
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.query.functions import Ints, owner_functions
from bpfprof.query.lock_numbers import numbered_locks
from bpfprof.query.requests import with_requests
from bpfprof.query.semaphores import fought_for
from bpfprof.query.shares import HANDED, IDLE, LOCK, leave_out_sleepers, shares_of_spans, sums
from bpfprof.query.stack_frames import StackFrames

CPU_TIME, READY_TIME, WAIT_TIME, IDLE_TIME = range(4)
# Who waits for a lock of CPython 3.14 or later does so at an address of its own (Python/parking_lot.c).
_PARKING_LOT = ("_PySemaphore_Wait", "_PyParkingLot_Park")

# One row a (thread, stack, state, share, reason, lock, object, waker). share: place in SHARES, IDLE or HANDED; lock: a
# number from 1; object, waker: as in spans.
WORK_DTYPE = np.dtype(
    [
        ("thread", "<i8"),
        ("stack", "<i8"),
        ("state", "<i8"),
        ("share", "<i8"),
        ("reason", "<i8"),
        ("lock", "<i8"),
        ("object", "<i8"),
        ("waker", "<i8"),
        ("count", "<i8"),
        ("ns", "<i8"),
    ]
)

# Waits for locks, columns as in spans; number: of the lock.
LOCK_WAIT_DTYPE = np.dtype(
    [
        ("number", "<i8"),
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("stands_for_ns", "<i8"),
        ("count", "<u4"),
        ("thread", "<u4"),
        ("stack", "<u4"),
        ("waker", "<u4"),
        ("waker_stack", "<u4"),
    ]
)
_KEYS = ("thread", "stack", "state", "share", "reason", "lock", "object", "waker")


@dataclass(frozen=True)
class Work:
    """Rows of WORK_DTYPE; `own`: of each stack the frame of the user's own code, a place in Profile.frames, -1: none.

    locks: (process, address) by the numbers of the rows, from 1 on, that of most waiting first; process 0: several may
    share it; address 0: none is known, but the file or the function that takes it. lock_waits: LOCK_WAIT_DTYPE.
    """

    rows: npt.NDArray[np.void]
    own: Ints
    stack_frames: StackFrames
    locks: tuple[tuple[int, int], ...]
    lock_waits: npt.NDArray[np.void]

    def thread_kinds(self, thread_count: int) -> list[list[int]]:
        """Nanoseconds of each thread by kinds_of()."""
        codes = self.rows["thread"] * 4 + kinds_of(self.rows)
        found: list[list[int]] = sums(codes, self.rows["ns"], thread_count * 4).reshape(-1, 4).tolist()
        return found

    @property
    def working(self) -> npt.NDArray[np.void]:
        """The rows of working time."""
        return picked(self.rows, self.rows["share"] < IDLE)

    def share_ns(self) -> Ints:
        """Of each of SHARES, then what was left out: idle, handed."""
        return sums(self.rows["share"], self.rows["ns"], HANDED + 1)


def kinds_of(rows: npt.NDArray[np.void]) -> Ints:
    """CPU_TIME, READY_TIME, WAIT_TIME (also for other threads) or IDLE_TIME of each row."""
    kinds = np.where(rows["state"] == ThreadState.ON_CPU, CPU_TIME, WAIT_TIME)
    kinds[rows["state"] == ThreadState.RUNQUEUE] = READY_TIME
    kinds[rows["share"] == IDLE] = IDLE_TIME
    return kinds


def work_of(profile: Profile, with_wakers: bool = False) -> Work:
    """with_wakers: rows tell waits apart by who ended them; else `waker` is 0. Raises ValueError without spans."""
    if profile.spans is None:
        raise ValueError("what threads worked at is found in a profile that was built with its spans")
    shown = (profile.spans["flags"] & SpanFlag.HIDDEN == 0) & (profile.spans["stands_for_ns"] > 0)
    shown &= profile.spans["state"] != ThreadState.UNKNOWN
    spans = picked(profile.spans, shown)
    stack_frames = StackFrames(profile.frames, profile.stacks)
    pids = np.array([int(thread.pid) for thread in profile.threads] or [0], np.int64)
    own = stack_frames.own_code()
    functions = owner_functions(profile.frames, own)
    waker_threads = np.array([-1, *(it.thread for it in profile.wakers)], np.int64)[spans["waker"].astype(np.int64)]
    fought = fought_for(spans, spans["state"] == ThreadState.OFF_CPU, waker_threads, stack_frames, functions)
    shares = shares_of_spans(profile, spans, stack_frames, fought)
    is_parked = stack_frames.have([frame.name in _PARKING_LOT for frame in profile.frames])
    locks, lock = numbered_locks(spans, shares == LOCK, pids, functions, is_parked)
    is_lock = lock > 0
    lock_waits = np.zeros(int(is_lock.sum()), LOCK_WAIT_DTYPE)
    for name in set(LOCK_WAIT_DTYPE.names or ()) - {"number"}:
        lock_waits[name] = spans[name][is_lock]
    lock_waits["number"] = lock[is_lock]
    reason = np.where(spans["state"] == ThreadState.OFF_CPU, spans["reason"], 0)
    waker = spans["waker"].astype(np.int64) if with_wakers else np.zeros(len(spans), np.int64)
    rows = _summed(spans, {"share": shares, "lock": lock, "reason": reason, "waker": waker})
    leave_out_sleepers(rows, len(profile.threads), stack_frames)
    rows = with_requests(profile, rows, stack_frames)
    return Work(rows, own, stack_frames, locks, lock_waits)


def _summed(spans: npt.NDArray[np.void], made: dict[str, Ints]) -> npt.NDArray[np.void]:
    """Rows of WORK_DTYPE; `made`: columns that spans do not have, or have otherwise."""
    columns: dict[str, Ints] = {name: made[name] if name in made else spans[name].astype(np.int64) for name in _KEYS}
    first, codes = group_numbers(columns.values())
    found = np.zeros(len(first), WORK_DTYPE)
    for name, column in columns.items():
        found[name] = column[first]
    for name, of_spans in (("count", "count"), ("ns", "stands_for_ns")):
        found[name] = sums(codes, spans[of_spans].astype(np.int64), len(first))
    return found
