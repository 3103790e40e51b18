"""Time that is no answer: of threads that wait for work or do nothing else, and of what another one waited for."""

from __future__ import annotations

from collections import Counter

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import FrameKind
from bpfprof.model.grouping import sums_by
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_number
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools, StackFrames
from bpfprof.query.work.shares import GPU, HANDED, IDLE, LOCK, READY, SLEEP

_IDLE_PART = 0.98  # a thread that waits for work so much of its time is none that works
_LOOKING_PART = 0.95  # nor one that sleeps so much of it, long each time
_LONG_SLEEP_NS = 500_000_000
_OTHERS_PART = 0.25  # of a thread's time: so much the others work who are then what the program is about
_CIRCLE_PART = 0.25  # of its time: so much each process of a circle waits for another one of it
_LOCK, _CODE = reason_number("lock"), (FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.INLINED)


def are_beside_python(profile: Profile, spans: npt.NDArray[np.void], stack_frames: StackFrames) -> Bools:
    """Kernel threads, and threads of processes without Python where others have it: shells, shims, daemons.

    They wait for work, or for the program that is asked about.
    """
    has_python = np.append(stack_frames.innermost_python() >= 0, False)
    threads = np.unique(spans["thread"][has_python[spans["stack"]]]).tolist()
    of_python = {profile.threads[thread].pid for thread in threads}
    return np.array(
        [each.is_kernel_thread or (bool(of_python) and each.pid not in of_python) for each in profile.threads]
        or [False]
    )


def leave_out_awaited(profile: Profile, spans: npt.NDArray[np.void], shares: Ints, awaited: Ints, pids: Ints) -> None:
    """The time of processes that another waited for most of it is the time of that wait. awaited: threads, -1: none.

    Of processes that wait for each other in a circle the waits are left out: what each did meanwhile answers them.
    """
    walls: dict[int, int] = {}
    for thread in profile.threads:
        walls[thread.pid] = max(walls.get(thread.pid, 0), thread.wall_ns)
    found = awaited >= 0
    waiting, waited_for = pids[spans["thread"]], pids[awaited]
    pairs, which = np.unique(waiting[found] << 32 | waited_for[found], return_inverse=True)
    waited_ns = sums_by(which, spans["stands_for_ns"][found].astype(np.int64), len(pairs))
    waits_for: dict[int, set[int]] = {}
    by_pid: Counter[int] = Counter()
    for pair, ns in zip(pairs.tolist(), waited_ns.tolist()):
        waiter, pid = divmod(pair, 1 << 32)
        by_pid[pid] += ns
        if ns >= _CIRCLE_PART * walls.get(waiter, 0):
            waits_for.setdefault(waiter, set()).add(pid)
    circle = [pid for pid in waits_for if pid in _reached(waits_for, pid)]
    left_out = [pid for pid, ns in by_pid.items() if 2 * ns > walls.get(pid, 0) and pid not in circle]
    shares[np.isin(waiting, left_out) & (shares < IDLE)] = HANDED
    shares[found & np.isin(waiting, circle) & np.isin(waited_for, circle)] = HANDED


def _reached(waits_for: dict[int, set[int]], pid: int) -> set[int]:
    """Those that a process waits for, that those wait for, and so on."""
    found, next_ones = set[int](), waits_for.get(pid, set())
    while next_ones - found:
        found = found | next_ones
        next_ones = {other for one in next_ones for other in waits_for.get(one, set())}
    return found


def like_those_with_stacks(spans: npt.NDArray[np.void], shares: Ints, waits: Bools, stack_frames: StackFrames) -> Ints:
    """A wait for a lock of which there is no stack is for work, or for others, where most of that thread's are."""
    is_lock = waits & (spans["reason"] == _LOCK)
    has_stack = (stack_frames.innermost_of_best([frame.kind in _CODE for frame in stack_frames.frames]) >= 0)[
        spans["stack"]
    ]
    count = int(spans["thread"].max(initial=0)) + 1
    known, ns = is_lock & has_stack, spans["stands_for_ns"].astype(np.int64)
    all_ns = sums_by(spans["thread"][known], ns[known], count)
    found = shares.copy()
    for share in (IDLE, HANDED, GPU):
        is_it = known & (shares == share)
        most = 2 * sums_by(spans["thread"][is_it], ns[is_it], count) > all_ns
        found[is_lock & ~has_stack & (shares == LOCK) & most[spans["thread"]]] = share
    return found


def leave_out_sleepers(
    rows: npt.NDArray[np.void], thread_count: int, stack_frames: StackFrames, is_awaited: Bools
) -> None:
    """Threads that do nothing but sleep now and then are idle, if others do something.

    They are in any case if they sleep long, in the function that they began with: they look again and again whether
    there is something to do. A script may have called it, if others wait for work. That they waited for a CPU then is
    not theirs. is_awaited: of each row, whether somebody waits for what is done there: that is no idle sleep.
    """
    by_thread = sums_by(rows["thread"] * (HANDED + 1) + rows["share"], rows["ns"], thread_count * (HANDED + 1))
    by_thread = by_thread.reshape(thread_count, HANDED + 1)
    aside = by_thread[:, [SLEEP, IDLE, HANDED]].sum(axis=1)
    part = np.where(by_thread[:, SLEEP] > 0, aside / (by_thread.sum(axis=1) - by_thread[:, READY]).clip(1), 0)
    busy_ns = by_thread[part < _IDLE_PART, :IDLE].sum()
    others_work = busy_ns >= _OTHERS_PART * by_thread.sum(axis=1).max(initial=0)
    # Of a row the first and the last one may be cut.
    is_long = rows["ns"] >= _LONG_SLEEP_NS * (rows["count"] - 1).clip(1)
    others_idle = bool((2 * by_thread[:, IDLE] > by_thread.sum(axis=1)).any())
    in_script = stack_frames.have([frame.name == "<module>" for frame in stack_frames.frames])
    depths = stack_frames.own_depths() - (in_script & others_idle)
    long = (rows["share"] == SLEEP) & (depths[rows["stack"]] <= 1) & is_long
    waits = (rows["state"] == ThreadState.OFF_CPU) & (rows["share"] < IDLE)
    part = part[rows["thread"]]
    is_idle = ((part >= _IDLE_PART) & others_work) | ((part >= _LOOKING_PART) & long)
    rows["share"][waits & is_idle & ~is_awaited] = IDLE
