"""Waits for locks, spans -> which of them are for one lock."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.grouping import group_numbers
from bpfprof.model.profile import Profile
from bpfprof.model.rows import picked
from bpfprof.model.spans import CONDITION_LOCK, LOCK_ADDRESS, PARKED_LOCK, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools
from bpfprof.query.work.waits import lock_owners

_FILE_LOCK = reason_number("file-lock")
_KNOWN_LOCK = np.uint64(PARKED_LOCK | CONDITION_LOCK)  # each that waits has a futex of its own, but the lock is known


def _told(profile: Profile, spans: npt.NDArray[np.void]) -> Bools:
    """Whether each span is one in which it was read in the process who holds what is waited for."""
    found = np.zeros(len(spans), np.bool_)
    looks = profile.lock_holders
    if not len(spans) or not len(looks):
        return found
    thread, at_ns = looks["thread"].astype(np.int64), looks["time_ns"].astype(np.int64)
    waits = np.flatnonzero(spans["state"] == ThreadState.OFF_CPU)
    spans = picked(spans, waits)
    if not len(spans):
        return found
    end_ns = spans["start_ns"] + spans["duration_ns"]
    # The threads one after the other on one clock; the spans of one do not overlap.
    length_ns = max(int(end_ns.max()), int(at_ns.max())) + 1
    starts = spans["thread"].astype(np.int64) * length_ns + spans["start_ns"]
    place = np.searchsorted(starts, thread * length_ns + at_ns, side="right") - 1
    place = place[(place >= 0) & (spans["thread"][place] == thread) & (end_ns[place] > at_ns)]
    found[waits[place]] = True
    return found


def had_by_others(profile: Profile, spans: npt.NDArray[np.void], waits: Bools, is_other: Bools, pids: Ints) -> Bools:
    """Whether each of these waits is for a lock that another thread had. is_other: another one ended the wait."""
    found, is_other = np.zeros(len(spans), np.bool_), is_other | _told(profile, spans)
    rows = np.flatnonzero(waits & ((spans["lock"] & np.uint64(LOCK_ADDRESS) > 0) | (spans["object"] > 0)))
    if len(rows):
        lock = spans["lock"][rows]
        _, number = group_numbers([lock_owners(lock, pids[spans["thread"][rows]]), lock, spans["object"][rows]])
        found[rows] = np.isin(number, number[is_other[rows]])
    return found


def numbered_locks(
    spans: npt.NDArray[np.void], is_lock: Bools, pids: Ints, functions: Ints, is_parked: Bools
) -> tuple[tuple[tuple[int, int], ...], Ints]:
    """(process and address by number, the number of each span or 0).

    For each stack: functions: the one it waits in; is_parked: whether it waits in CPython's parking lot.
    """
    numbers = np.zeros(len(spans), np.int64)
    of_locks = np.flatnonzero(is_lock)
    if not len(of_locks):
        return (), numbers
    waits = spans[of_locks]
    pid = lock_owners(waits["lock"], pids[waits["thread"]])
    own_addresses = np.unique(waits["lock"][is_parked[waits["stack"]] & (waits["lock"] & _KNOWN_LOCK == 0)])
    is_shared = waits["object"] > 0  # it is a file, or in memory of one, which processes may share
    of_file = waits["reason"] == _FILE_LOCK
    has_no_address = (waits["lock"] & np.uint64(LOCK_ADDRESS) == 0) | np.isin(waits["lock"], own_addresses)
    has_no_address |= is_shared | of_file
    pid[has_no_address & (of_file | is_shared)] = 0
    file = np.where(has_no_address, waits["object"], 0)
    function = np.where(has_no_address & (file == 0), functions[waits["stack"]] + 1, 0)
    address = np.where(has_no_address, 0, waits["lock"])
    begin = np.where(of_file, waits["lock"], 0)
    first, codes = group_numbers([pid, address, file, begin, function])
    waited = np.zeros(len(first), np.int64)
    np.add.at(waited, codes, waits["stands_for_ns"].astype(np.int64))
    order = np.argsort(-waited, kind="stable")
    rank = np.zeros(len(first), np.int64)
    rank[order] = np.arange(1, len(first) + 1)
    numbers[of_locks] = rank[codes]
    best = first[order]
    return tuple(zip(pid[best].tolist(), address[best].tolist())), numbers
