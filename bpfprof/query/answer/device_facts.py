"""Work -> what its threads wait for a GPU for, and whether they are late with what it is to do."""

from __future__ import annotations

from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.known.frameworks import OF_DEVICES
from bpfprof.known.waiting import LAUNCH, MEMORY, kind_of
from bpfprof.model.grouping import sums_by, totals_of
from bpfprof.model.profile import Profile
from bpfprof.query.code.origins import origins
from bpfprof.query.code.stack_frames import LIBRARY_RANK, NATIVE_RANK, OWN_RANK, Bools, StackFrames
from bpfprof.query.threads.library_calls import library_calls
from bpfprof.query.work.shares import GPU, NATIVE, PYTHON
from bpfprof.query.work.table import Work
from bpfprof.query.work.waiting import QUEUE, StackWaits

# upload, download: of memory that is not pinned; queue: it has no room for more work.
DOES = ("compute", "copy", "upload", "download", "memory", "queue")
_MOST = 0.5
_OF_SOMEBODY = (NATIVE_RANK, LIBRARY_RANK, OWN_RANK)  # and not of the standard libraries, which anybody calls
_OF_ANYBODY = ("libstdc++", "libc++", "libgcc_s", "libm.", "libtcmalloc", "libjemalloc", "libmimalloc")


def device_facts(profile: Profile, work: Work) -> dict[str, Any]:
    """Those of Facts that say something of devices."""
    rows, waiting = work.working, work.waiting
    whole_ns = max(int(rows["ns"].sum()), 1)
    is_cpu = np.isin(rows["share"], (PYTHON, NATIVE))
    launch_ns = int(rows["ns"][is_cpu & waiting.launches[rows["stack"]]].sum())
    feeding_ns = int(rows["ns"][is_cpu & _in_frameworks(work.stack_frames)[rows["stack"]]].sum()) if launch_ns else 0
    waits = rows[rows["share"] == GPU]
    found: dict[str, Any] = {"launch_part": launch_ns / whole_ns, "feeding_part": feeding_ns / whole_ns}
    found |= _launches(profile)
    if not len(waits):
        return found
    gpu_ns = int(waits["ns"].sum())
    return {
        **found,
        "gpu_does": _does(waits, waiting, gpu_ns),
        "gpu_call": _call(work, waits, waiting, gpu_ns),
    }


def _launches(profile: Profile) -> dict[str, Any]:
    """What is known of calls that launch, where calls were counted."""
    rows = [
        each
        for each in library_calls(profile)
        if not (each.is_inside or each.is_open) and kind_of(each.function, "lib") == LAUNCH
    ]
    count = sum(row.count for row in rows)
    return {"launches": count, "launch_ns": sum(row.total_ns for row in rows) / count} if count else {}


def main_waits(profile: Profile, work: Work) -> tuple[int, ...]:
    """Main threads that wait for a GPU most of their time, places in Profile.threads."""
    walls = np.array([thread.wall_ns for thread in profile.threads] or [0], np.int64)
    is_main = np.array([int(thread.tid) == int(thread.pid) for thread in profile.threads] or [False], np.bool_)
    waits = work.rows[work.rows["share"] == GPU]
    ns = sums_by(waits["thread"], waits["ns"], len(walls))
    found: tuple[int, ...] = tuple(np.flatnonzero(is_main & (ns > _MOST * walls)).tolist())
    return found


def _does(waits: npt.NDArray[np.void], waiting: StackWaits, gpu_ns: int) -> str:
    up, down = waiting.copies_pageable
    memory, queue = waiting.of_device == MEMORY, waiting.of_device == QUEUE
    for word, chosen in (
        ("upload", up),
        ("download", down),
        ("copy", waiting.copies),
        ("memory", memory),
        ("queue", queue),
    ):
        if waits["ns"][chosen[waits["stack"]]].sum() > _MOST * gpu_ns:
            return word
    return "compute"


def _call(work: Work, waits: npt.NDArray[np.void], waiting: StackWaits, gpu_ns: int) -> str:
    """`cuStreamSynchronize()`, "" where it is not one for most of the time."""
    best = totals_of(waiting.device_frame[waits["stack"]], waits["ns"])[0]
    is_one = best.value >= 0 and best.ns > _MOST * gpu_ns
    return f"{work.stack_frames.frames[best.value].name.partition('(')[0]}()" if is_one else ""


def _in_frameworks(frames: StackFrames) -> Bools:
    """Whether the innermost of each stack's frames that are of a library, or the user's own, is of a framework."""
    libraries = [origin.library for origin in origins(frames.frames)]
    is_somebody = [
        rank in _OF_SOMEBODY and not library.startswith(_OF_ANYBODY)
        for rank, library in zip(frames.nearness.tolist(), libraries)
    ]
    inner = frames.innermost_of_best(is_somebody)
    is_one = [library.partition(".so")[0] in OF_DEVICES for library in libraries]
    return np.array([*is_one, False])[inner]
