"""Waits for a threading.Semaphore: which of them are fights for a lock, and which wait for what another thread does.

Who has a lock releases it in a function that took it, and waits there too when another has it. So it is a lock where
waits are ended by threads that wait in the same function; one that only ever releases it says that something is there.
"""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import Frame
from bpfprof.query.functions import Ints
from bpfprof.query.stack_frames import Bools, StackFrames

_FILE, _ACQUIRE, _WAIT = "threading.py", "acquire", "wait"  # Semaphore.acquire() calls Condition.wait(), 3.6 to 3.15
_MOST = 0.5  # of the time that was waited for it


def fought_for(
    spans: npt.NDArray[np.void], waits: Bools, waker_threads: Ints, stack_frames: StackFrames, functions: Ints
) -> Bools:
    """Whether each stack waits for a semaphore that is a lock.

    waits: which spans are waits; waker_threads: of each span, -1: not known; functions: of each stack its own one.
    """
    of_semaphore = _in_semaphore(stack_frames)
    rows = np.flatnonzero(waits & of_semaphore[spans["stack"]])
    if not len(rows):
        return np.zeros_like(of_semaphore)
    function = functions[spans["stack"][rows]].astype(np.int64) + 1
    thread, waker = spans["thread"][rows].astype(np.int64), waker_threads[rows]
    is_one = np.isin(function << 32 | waker + 1, function << 32 | thread + 1) & (waker >= 0) & (waker != thread)
    count = int(function.max()) + 1
    ns = spans["stands_for_ns"][rows].astype(np.int64)
    whole, by_one = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(whole, function, ns)
    np.add.at(by_one, function, ns * is_one)
    is_lock = (by_one > 0) & (by_one >= _MOST * whole)
    place = np.clip(functions.astype(np.int64) + 1, 0, count - 1)
    found: Bools = of_semaphore & is_lock[place] & (place == functions + 1)
    return found


def _in_semaphore(stack_frames: StackFrames) -> Bools:
    frames = stack_frames.frames
    in_wait = np.array([*(_is(frame, _WAIT) for frame in frames), False])[stack_frames.innermost_python()]
    return in_wait & stack_frames.have([_is(frame, _ACQUIRE) for frame in frames])


def _is(frame: Frame, method: str) -> bool:
    return frame.name.rpartition(".")[2] == method and frame.file.rpartition("/")[2] == _FILE
