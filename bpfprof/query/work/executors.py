"""Tasks of event loops that want more threads of executors than there are: asyncio's own, and anyio's of Starlette."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.profile import Profile
from bpfprof.model.states import AWAIT_REASONS
from bpfprof.query.code.stack_frames import Bools, StackFrames

# _WorkItem.run() of concurrent.futures (Lib/concurrent/futures/thread.py), WorkerThread.run() and
# run_sync_in_worker_thread() of anyio 3 and 4 (src/anyio/_backends/_asyncio.py), which waits in Queue.get() for work.
_ANYIO = "anyio/_backends/_asyncio.py"
_WORKS = (("concurrent/futures/thread.py", ("run",)), (_ANYIO, ("run",)))
_WAITS_FOR_WORK = ((_ANYIO, ("run",)), ("/queue.py", ("get",)))
_WANTS_A_THREAD = ((_ANYIO, ("run_sync_in_worker_thread",)),)
_EXECUTOR = AWAIT_REASONS.index("executor")
_MORE = 1.5  # tasks for each thread that has one: fewer may be chance


class Wanted(NamedTuple):
    """At a time, on average: tasks that have or want a thread of an executor, and threads of them that do something."""

    tasks: float
    threads: float


def do_items(stack_frames: StackFrames) -> Bools:
    """Whether each stack is of what a thread of an executor was given to do."""
    looks = stack_frames.pass_through(_WAITS_FOR_WORK[:1]) & stack_frames.pass_through(_WAITS_FOR_WORK[1:])
    return stack_frames.pass_through(_WORKS) & ~looks


def wanted_threads(profile: Profile, rows: npt.NDArray[np.void], stack_frames: StackFrames) -> Wanted | None:
    """None where there are enough of them. rows: of Work."""
    tasks, duration_ns = profile.task_spans, max((thread.wall_ns for thread in profile.threads), default=0)
    if not len(tasks) or not duration_ns:
        return None
    wants = (tasks["reason"] == _EXECUTOR) | stack_frames.pass_through(_WANTS_A_THREAD)[tasks["stack"]]
    does = do_items(stack_frames)[rows["stack"]]
    count, threads = (
        float(ns.sum()) / duration_ns for ns in (tasks["stands_for_ns"][wants & ~tasks["is_running"]], rows["ns"][does])
    )
    return Wanted(count, threads) if threads > 0.5 and count >= max(_MORE * threads, 2) else None
