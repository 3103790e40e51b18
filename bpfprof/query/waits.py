"""Spans of a Profile -> its waits, one row each: how long, and who ended it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.profile import Profile
from bpfprof.model.spans import SHARED_LOCK, SpanFlag, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.model.statuses import Status

Ints = npt.NDArray[np.int64]
_GIL = reason_number("gil")

# Sorted by (thread, start). number: as in the spans, 0 of waits that are only known as a sum. blocked_ns: how long it
# was blocked, 0 of sums; total_ns, count: of the waits that it stands for, itself
# included. waker, waker_stack: of its last span. before: the place of the last wait of the waker that ended before this
# one did, -1: none. is_shown: it passed the profile's filter, and no other speaks for it.
WAIT_ROW_DTYPE = np.dtype(
    [
        ("number", "<i8"),
        ("blocked_ns", "<i8"),
        ("total_ns", "<i8"),
        ("count", "<i8"),
        ("lock", "<u8"),
        ("thread", "<i8"),
        ("stack", "<i8"),
        ("reason", "<i8"),
        ("waker", "<i8"),
        ("waker_stack", "<i8"),
        ("before", "<i8"),
        ("object", "<i8"),
        ("is_idle", "?"),
        ("is_shown", "?"),
    ]
)


def lock_owners(locks: npt.NDArray[np.generic], pids: Ints) -> Ints:
    """The process that each lock is told apart by: 0 where processes share it."""
    return np.where(locks.astype(np.uint64) & np.uint64(SHARED_LOCK) > 0, 0, pids)


@dataclass(frozen=True)
class Waits:
    """The waits of a profile that was built with its spans: rows of WAIT_ROW_DTYPE.

    held: those of its spans that are of a wait for a GIL, and held_by: the row of each.
    """

    rows: npt.NDArray[np.void]
    held: npt.NDArray[np.void]
    held_by: Ints


def find_waits(profile: Profile) -> Waits:
    """Every wait with a row in the recording, and those without one for which none could speak.

    Raises ValueError without spans.
    """
    if profile.spans is None:
        raise ValueError("waits are found in a profile that was built with its spans")
    spans = profile.spans[profile.spans["state"] == ThreadState.OFF_CPU]
    unheard = (spans["wait"] == 0) & (spans["status"] == Status.NOT_SAMPLED) & (spans["stands_for_ns"] > 0)
    spans = spans[(spans["wait"] > 0) | unheard]
    # A span without a wait is a row of its own.
    number = spans["wait"].astype(np.int64)
    first = np.flatnonzero((np.diff(number, prepend=-1) != 0) | (number == 0))
    last = np.append(first[1:], len(spans))[: len(first)] - 1
    rows = np.zeros(len(first), WAIT_ROW_DTYPE)
    begun, ended = spans[first], spans[last]
    rows["number"] = begun["wait"]
    for name in ("lock", "thread", "stack", "reason", "object"):
        rows[name] = begun[name]
    for name in ("waker", "waker_stack"):
        rows[name] = ended[name]
    if len(first):
        for name, column in (("blocked_ns", "duration_ns"), ("total_ns", "stands_for_ns"), ("count", "count")):
            rows[name] = np.add.reduceat(spans[column].astype(np.int64), first)
    rows["blocked_ns"][begun["wait"] == 0] = 0
    rows["is_idle"] = begun["flags"] & SpanFlag.IDLE > 0
    rows["is_shown"] = (begun["flags"] & SpanFlag.HIDDEN == 0) & (rows["total_ns"] > 0)
    rows["before"] = _before(profile, rows, ended["start_ns"] + ended["duration_ns"])
    held = spans["reason"] == _GIL
    row_of = np.repeat(np.arange(len(rows)), last - first + 1)
    return Waits(rows, spans[held], row_of[held])


def _before(profile: Profile, rows: npt.NDArray[np.void], woken_ns: Ints) -> Ints:
    """For each wait the last one of its waker that had ended when it did; woken_ns: when each ended."""
    found = np.full(len(rows), -1, np.int64)
    thread_of = np.array([-1, *(waker.thread for waker in profile.wakers)], np.int64)
    waker_thread = thread_of[np.minimum(rows["waker"], len(thread_of) - 1)]
    waited = np.flatnonzero(rows["blocked_ns"])
    begin = np.searchsorted(rows["thread"][waited], np.arange(len(profile.threads) + 1))
    order = np.argsort(waker_thread, kind="stable")
    borders = np.searchsorted(waker_thread[order], np.arange(len(profile.threads) + 1))
    for number in np.flatnonzero(np.diff(borders)).tolist():
        woken = order[borders[number] : borders[number + 1]]
        own = waited[begin[number] : begin[number + 1]]
        place = np.searchsorted(woken_ns[own], woken_ns[woken], side="right")
        found[woken[place > 0]] = own[place[place > 0] - 1]
    return found
