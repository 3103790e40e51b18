"""Waits for a threading.Semaphore: which of them are fights for a lock, and which wait for what another thread does.

It is a lock where who releases it had taken it: that one does so at the end of a `with`, or where it is waited for, or
waits for it too. One that only ever releases it says that something is there.
"""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import Frame
from bpfprof.model.grouping import group_numbers
from bpfprof.model.spans import CONDITION_LOCK, LOCK_ADDRESS
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools, StackFrames

_FILE, _ACQUIRE, _WAIT, _EXIT = "threading.py", "acquire", "wait", "__exit__"  # of Semaphore and Condition, 3.6 to 3.15
_MOST = 0.5  # of the time that was waited for it


def fought_for(
    spans: npt.NDArray[np.void], waits: Bools, waker_threads: Ints, stack_frames: StackFrames, functions: Ints
) -> Bools:
    """Whether each span waits for a semaphore that is a lock.

    waits: which spans are waits; waker_threads: for each span, -1: not known; functions: for each stack its own one, by
    which a semaphore is told where its address is not known.
    """
    found = np.zeros(len(spans), np.bool_)
    rows = np.flatnonzero(waits & _in_semaphore(stack_frames)[spans["stack"]])
    if not len(rows):
        return found
    function = functions[spans["stack"][rows]].astype(np.int64)
    lock = spans["lock"][rows]
    address = np.where(lock & np.uint64(CONDITION_LOCK) > 0, lock & np.uint64(LOCK_ADDRESS), 0).astype(np.int64)
    _, number = group_numbers([address, np.where(address > 0, -1, function)])
    thread, waker = spans["thread"][rows].astype(np.int64), waker_threads[rows]
    waits_too = np.isin(number << 32 | waker + 1, number << 32 | thread + 1) & (waker >= 0)
    giver = np.append(functions, -1)[spans["waker_stack"][rows].astype(np.int64) - 1]
    releases_there = (giver >= 0) & (giver == function)
    is_one = (waits_too | releases_there | _ends_with(stack_frames)[spans["waker_stack"][rows]]) & (waker != thread)
    ns = spans["stands_for_ns"][rows].astype(np.int64)
    whole, by_one = (np.bincount(number, weights=each) for each in (ns, ns * is_one))
    found[rows] = ((by_one > 0) & (by_one >= _MOST * whole))[number]
    return found


def _in_semaphore(stack_frames: StackFrames) -> Bools:
    frames = stack_frames.frames
    in_wait = np.array([*(_is(frame, _WAIT) for frame in frames), False])[stack_frames.innermost_python()]
    return in_wait & stack_frames.have([_is(frame, _ACQUIRE) for frame in frames])


def _ends_with(stack_frames: StackFrames) -> Bools:
    """For each stack by its place + 1, whether it is at the end of a `with` of a semaphore."""
    return np.append(False, stack_frames.have([_is(frame, _EXIT) for frame in stack_frames.frames]))


def _is(frame: Frame, method: str) -> bool:
    return frame.name.rpartition(".")[2] == method and frame.file.rpartition("/")[2] == _FILE
