"""Work -> what its threads wait for a GPU for, and whether they are late with what it is to do."""

from __future__ import annotations

from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.known.frameworks import OF_DEVICES
from bpfprof.known.waiting import LAUNCH, MEMORY, kind_of
from bpfprof.model.calls import CallFlag
from bpfprof.model.grouping import sums_by, totals_of
from bpfprof.model.profile import Profile
from bpfprof.query.code.origins import origins
from bpfprof.query.code.stack_frames import LIBRARY_RANK, NATIVE_RANK, OWN_RANK, Bools, StackFrames
from bpfprof.query.steps.steps import find_steps
from bpfprof.query.work.shares import GPU, NATIVE, PYTHON
from bpfprof.query.work.table import Work
from bpfprof.query.work.waiting import QUEUE, StackWaits

# upload, download, and pageable for either: of memory that is not pinned; queue: it has no room for more work.
DOES = ("compute", "copy", "upload", "download", "pageable", "memory", "queue")
_MOST = 0.5
_NEARLY_ALL = 0.9  # of a recording: what is counted of all of it is that of steps that take so much of it
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
    """What is known of calls that launch, where calls were counted: how many a step, where nearly all time is of steps,
    else a second, in the process of the steps, else in that with most of them. Of a part of the time it is not known.
    """
    is_launch = np.array([*(kind_of(name, "lib") == LAUNCH for name in profile.call_names), False], np.bool_)
    calls, pids = profile.calls, np.array([*(int(thread.pid) for thread in profile.threads), 0], np.int64)
    rows = calls[is_launch[calls["function"]] & (calls["flags"] & (CallFlag.INSIDE | CallFlag.OPEN) == 0)]
    if profile.is_of_window or not rows["count"].sum():
        return {}
    each_ns, unit, of_row = 1e9, "second", pids[rows["thread"]]
    pid = totals_of(of_row, rows["count"].astype(np.int64))[0].value
    found = find_steps(profile) if len(profile.samples) else ()
    of_steps = [(steps, int(profile.threads[steps.thread].pid)) for steps in found]
    of_steps = [(steps, its) for steps, its in of_steps if rows["count"][of_row == its].sum()]
    whole = [each for each in of_steps if each[0].durations_ns.sum() > _NEARLY_ALL * profile.info.duration_ns]
    if of_steps:
        pid = (whole or of_steps)[0][1]
    if whole:
        each_ns, unit = float(whole[0][0].durations_ns.mean()), "step"
    rows = rows[of_row == pid]
    count = int(rows["count"].sum())
    return {
        "launches": count * each_ns / max(profile.info.duration_ns, 1),
        "launches_in": unit,
        "launch_ns": int(rows["total_ns"].sum()) / count,
    }


def main_waits(profile: Profile, work: Work) -> tuple[int, ...]:
    """Main threads that wait for a GPU most of their time, places in Profile.threads."""
    walls = np.array([thread.wall_ns for thread in profile.threads] or [0], np.int64)
    is_main = np.array([int(thread.tid) == int(thread.pid) for thread in profile.threads] or [False], np.bool_)
    waits = work.rows[work.rows["share"] == GPU]
    ns = sums_by(waits["thread"], waits["ns"], len(walls))
    found: tuple[int, ...] = tuple(np.flatnonzero(is_main & (ns > _MOST * walls)).tolist())
    return found


def _does(waits: npt.NDArray[np.void], waiting: StackWaits, gpu_ns: int) -> str:
    up, down, either = waiting.copies_pageable
    memory, queue = waiting.of_device == MEMORY, waiting.of_device == QUEUE
    for word, chosen in (
        ("upload", up),
        ("download", down),
        ("pageable", up | down | either),
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
