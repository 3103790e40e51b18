"""Spans -> threads that libraries and runtimes keep for themselves, and that serve nobody at the time.

They run no Python, do next to nothing, and no thread of the program waits long for one: what they wait for is work. A
driver's thread that polls a device, the workers of a pool that is not used and a loop of events without any are such.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.known.frameworks import DRIVERS
from bpfprof.model.profile import Profile
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools, StackFrames

_WORKS = 0.1  # of its time: who works so much is none
_AWAITED = 0.05  # of the time of another: for so much that one waits for it
_UNKNOWN = 0.25  # of it: who waits so much, and it is not known for whom, may wait for any


def servants(
    profile: Profile, spans: npt.NDArray[np.void], works: Bools, behind: Bools, stack_frames: StackFrames
) -> Bools:
    """For each thread whether it is one. works, behind: whether each span is work, or waits for another thread."""
    count = len(profile.threads)
    walls = np.array([thread.wall_ns for thread in profile.threads] or [0], np.int64).clip(1)
    worked_ns = np.bincount(spans["thread"][works], spans["stands_for_ns"][works], len(walls))
    in_python = stack_frames.innermost_python() >= 0
    is_main = np.array([int(thread.tid) == int(thread.pid) for thread in profile.threads] or [False], np.bool_)
    matters = is_main | (np.bincount(spans["thread"][in_python[spans["stack"]]], minlength=len(walls)) > 0)
    kept = matters | (worked_ns > _WORKS * walls)
    waits = {name: spans[name][behind] for name in ("thread", "waker", "stands_for_ns")}
    awaited = _awaited(profile, waits, walls)
    kept |= _may_be_awaited(profile, waits, matters, walls)
    reached = {*np.flatnonzero(matters).tolist()}
    following = [*reached]
    while following:
        others = awaited.get(following.pop(), set()) - reached
        reached |= others
        following += others
    kept[[*reached]] = True
    return ~kept[: max(count, 1)]


def of_drivers(stack_frames: StackFrames, spans: npt.NDArray[np.void], count: int) -> Bools:
    """For each thread whether the driver of a device began it: what it waits for is work, whatever it does then."""
    is_driver = [bool(DRIVERS.match(frame.file.rpartition("/")[2])) for frame in stack_frames.frames]
    found = np.zeros(max(count, 1), np.bool_)
    found[spans["thread"][np.array([*is_driver, False])[stack_frames.beginnings()][spans["stack"]]]] = True
    found[spans["thread"][(stack_frames.innermost_python() >= 0)[spans["stack"]]]] = False
    return found


def _may_be_awaited(profile: Profile, waits: dict[str, npt.NDArray[Any]], matters: Bools, walls: Ints) -> Bools:
    """Threads of processes of which one waits much for what is not known."""
    unknown = (waits["waker"] == 0) & matters[waits["thread"]]
    ns = np.bincount(waits["thread"][unknown], waits["stands_for_ns"][unknown], len(walls))
    pids = np.array([int(thread.pid) for thread in profile.threads] or [-1], np.int64)
    return np.isin(pids, pids[ns > _UNKNOWN * walls])


def _awaited(profile: Profile, waits: dict[str, npt.NDArray[Any]], walls: Ints) -> dict[int, set[int]]:
    """For each thread those that it waits long for."""
    wakers = np.array([-1, *(each.thread for each in profile.wakers)], np.int64)[waits["waker"].astype(np.int64)]
    known = (wakers >= 0) & (wakers != waits["thread"])
    pairs, of_pair = np.unique(waits["thread"][known].astype(np.int64) << 32 | wakers[known], return_inverse=True)
    ns = np.bincount(of_pair, waits["stands_for_ns"][known], len(pairs))
    found: dict[int, set[int]] = {}
    for pair, its_ns in zip(pairs.tolist(), ns.tolist()):
        waiter, waker = divmod(pair, 1 << 32)
        if its_ns >= _AWAITED * walls[waiter]:
            found.setdefault(waiter, set()).add(waker)
    return found
