"""A profile and its work -> the work that a training loop waits for: what its own thread does, and what feeds it.

Of everything else nobody waits for it, however much it is: workers that have the next batches ready while the model
computes are no reason why a step takes its time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.grouping import group_numbers, sums_by
from bpfprof.model.ids import Pid
from bpfprof.model.profile import Profile
from bpfprof.model.rows import picked
from bpfprof.model.spans import ThreadState
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools
from bpfprof.query.steps.phases import BACKWARD, DATA, FORWARD, OPTIMIZER, StackPhases
from bpfprof.query.work.shares import DEVICE, DISK, GIL, HANDED, IDLE, READY, SLEEP
from bpfprof.query.work.table import Work

_MOST = 0.5  # of a thread's time in phases of a step: then it is the one that runs the loop
_HANDS_ON = 0.25  # of its time: who works less hands on what others do, as a thread that copies to pinned memory
_MOST_HANDS = 3


@dataclass(frozen=True)
class CriticalPath:
    """work: with the rows of loops, and of those they waited for, these for as long as they were waited for.

    loops: places of the threads that run steps. wall_ns: all of their time; data_ns: of it what they waited for data;
    loading_ns: and worked at it themselves, as those do that read it from a disk. loaders: how many threads, or other
    processes, they had the data from, and how long those worked. loader_threads: their places. is_loading: of all rows
    of work, those of loading_ns.
    """

    work: Work
    loops: tuple[int, ...]
    wall_ns: int
    data_ns: int
    loading_ns: int
    loaders: int
    loaders_ns: int
    loader_threads: tuple[int, ...]
    is_loading: Bools


def critical_path(profile: Profile, work: Work, phases: StackPhases) -> CriticalPath | None:
    """None where no thread runs the steps of a training. phases: of all stacks."""
    loops = _loops(profile, work, phases)
    if not loops:
        return None
    rows, count = work.rows, len(profile.threads)
    worked_ns = sums_by(rows["thread"], np.where(rows["share"] < IDLE, rows["ns"], 0), count)
    behind_ns = waited_ns(profile, work, loops)
    part = np.zeros(count, np.float64)
    reached = _hand_on(profile, work, behind_ns, worked_ns, set(loops))
    for members, ns in reached.items():
        part[[*members]] = min(1.0, ns / max(int(worked_ns[[*members]].sum()), 1))
    part[[*loops]] = 1.0
    scaled = rows.copy()
    scaled["ns"] = np.rint(rows["ns"] * part[rows["thread"]])
    of_loop = np.isin(rows["thread"], loops)
    is_data = of_loop & (phases.of_stack[rows["stack"]] == phases.names.index(DATA))
    # Who lacks the GIL or a CPU does so wherever it is.
    is_data &= ~np.isin(rows["share"], (GIL, READY))
    is_wait = (rows["state"] == ThreadState.OFF_CPU) & is_data & ~np.isin(rows["share"], (DISK, DEVICE, SLEEP))
    from_data = waited_ns(profile, work, loops, phases.of_stack == phases.names.index(DATA))
    loaders = _hand_on(profile, work, from_data, worked_ns, set(loops))
    threads = sorted({thread for members in loaders for thread in members})
    return CriticalPath(
        replace(work, rows=scaled),
        loops,
        sum(profile.threads[thread].wall_ns for thread in loops),
        int(rows["ns"][is_wait].sum()),
        int(rows["ns"][is_data & ~is_wait].sum()),
        len(loaders),
        int(worked_ns[threads].sum()),
        tuple(threads),
        is_data & ~is_wait,
    )


def _loops(profile: Profile, work: Work, phases: StackPhases) -> tuple[int, ...]:
    """Threads most of whose time is spent in phases of a step, of which one must be more than waiting for data."""
    rows, count = work.rows, len(profile.threads)
    phase = phases.of_stack[rows["stack"]]
    computes = np.isin(phase, [phases.names.index(name) for name in (FORWARD, BACKWARD, OPTIMIZER)])
    in_step = phase != len(phases.names) - 1
    step_ns, computing_ns = (sums_by(rows["thread"][each], rows["ns"][each], count) for each in (in_step, computes))
    walls = np.array([thread.wall_ns for thread in profile.threads] or [0], np.int64)
    found: tuple[int, ...] = tuple(np.flatnonzero((step_ns > _MOST * walls) & (computing_ns > 0)).tolist())
    return found


def waited_ns(profile: Profile, work: Work, threads: tuple[int, ...], stacks: Bools | None = None) -> dict[int, int]:
    """Thread -> how long these waited for what it did, in these stacks."""
    assert profile.spans is not None
    spans, rows = profile.spans, work.rows
    handed = np.unique(rows["stack"][(rows["share"] == HANDED) & np.isin(rows["thread"], threads)])
    chosen = np.isin(spans["thread"], threads) & (spans["state"] == ThreadState.OFF_CPU) & (spans["waker"] > 0)
    chosen &= np.isin(spans["stack"], handed)
    if stacks is not None:
        chosen &= stacks[spans["stack"]]
    of = spans[chosen]
    wakers = np.array([-1, *(waker.thread for waker in profile.wakers)], np.int64)[of["waker"].astype(np.int64)]
    known = (wakers >= 0) & ~np.isin(wakers, threads)
    ns = sums_by(wakers[known], of["stands_for_ns"][known].astype(np.int64), len(profile.threads))
    return {thread: int(ns[thread]) for thread in np.flatnonzero(ns).tolist()}


def handed_waits(profile: Profile, work: Work) -> dict[int, dict[int, int]]:
    """For each thread what waited_ns() says of it alone, where it waited for any."""
    assert profile.spans is not None
    spans, rows = profile.spans, work.rows
    handed = rows[rows["share"] == HANDED]
    waits = np.flatnonzero((spans["state"] == ThreadState.OFF_CPU) & (spans["waker"] > 0))
    of = picked(spans, waits[np.isin(_places(spans[["thread", "stack"]][waits]), _places(handed))])
    wakers = np.array([-1, *(each.thread for each in profile.wakers)], np.int64)[of["waker"].astype(np.int64)]
    known = (wakers >= 0) & (wakers != of["thread"])
    of, wakers = picked(of, known), wakers[known]
    first, number = group_numbers([of["thread"], wakers])
    found: dict[int, dict[int, int]] = {}
    ns = sums_by(number, of["stands_for_ns"].astype(np.int64), len(first))
    for thread, waker, its_ns in zip(of["thread"][first].tolist(), wakers[first].tolist(), ns.tolist()):
        found.setdefault(thread, {})[waker] = its_ns
    return found


def _places(rows: npt.NDArray[np.void]) -> Ints:
    """For each row its thread and stack as one number."""
    return np.asarray(rows["thread"].astype(np.int64) << 32 | rows["stack"])


def _hand_on(
    profile: Profile, work: Work, behind_ns: dict[int, int], worked_ns: Ints, loops: set[int]
) -> dict[tuple[int, ...], int]:
    """Threads that work together, those of a process or one of a loop's -> how long they were waited for.

    Who only hands on is left out for those whom it waits for.
    """
    loop_pids = {profile.threads[thread].pid for thread in loops}
    found: dict[tuple[int, ...], int] = {}
    seen: set[int] = set()
    for _ in range(_MOST_HANDS):
        following: dict[int, int] = {}
        for thread, ns in behind_ns.items():
            seen.add(thread)
            members = _together(profile, thread, loop_pids)
            hands_on = worked_ns[[*members]].sum() < _HANDS_ON * profile.threads[thread].wall_ns
            before = waited_ns(profile, work, (thread,)) if hands_on else {}
            before = {it: its_ns for it, its_ns in before.items() if it not in seen and it not in loops}
            if not before:
                found[members] = found.get(members, 0) + ns
            for it, its_ns in before.items():
                following[it] = following.get(it, 0) + round(ns * its_ns / sum(before.values()))
        behind_ns = following
    return found


def _together(profile: Profile, thread: int, loop_pids: set[Pid]) -> tuple[int, ...]:
    """The threads of its process; it alone where a loop runs in that."""
    pid = profile.threads[thread].pid
    if pid in loop_pids:
        return (thread,)
    return tuple(place for place, it in enumerate(profile.threads) if it.pid == pid)
