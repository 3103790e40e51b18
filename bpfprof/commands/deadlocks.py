"""Processes as they are now -> the same with their deadlocks, also those that go through other processes."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from bpfprof.capture.knots import knots
from bpfprof.capture.now import process_now
from bpfprof.errors import TargetError, UnsupportedError
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.now import OF_THREADS, ProcessNow, ThreadNow
from bpfprof.proc import tasks
from bpfprof.query.waits.wait_graph import cycles, endless_waits

_OTHERS = 16  # processes that are looked at only because they have what one waits for


def with_deadlocks(processes: Sequence[ProcessNow]) -> list[ProcessNow]:
    """Each deadlock is where a thread of it is; who has what these wait for is looked at, too."""
    known = {process.pid: process for process in processes}
    waiting = [*known.values()]
    while waiting and len(known) < len(processes) + _OTHERS:
        for pid in _holders(waiting.pop()):
            if pid not in known:
                with contextlib.suppress(TargetError, UnsupportedError):
                    known[pid] = process_now(pid)
                    waiting.append(known[pid])
    known = _with_knots(known)
    pid_of = {thread.tid: process.pid for process in known.values() for thread in process.threads}
    wanted_of = {thread.tid: thread.waits_for for process in known.values() for thread in process.threads}
    found = []
    for cycle in cycles(_waits(known)):
        others = [each for tid in cycle if (wanted := wanted_of[tid]) for each in wanted.could]
        if _at_once(cycle, {pid_of[tid] for tid in cycle}, others):
            found.append(cycle)
    done = []
    for process in (known[each.pid] for each in processes):
        own = [cycle for cycle in found if any(pid_of[tid] == process.pid for tid in cycle)]
        elsewhere = {tid: pid_of[tid] for cycle in own for tid in cycle if pid_of[tid] != process.pid}
        names = {thread.tid: thread.name for pid in elsewhere.values() for thread in known[pid].threads}
        texts = {tid: f"{names[tid]} of process {pid}" for tid, pid in elsewhere.items()}
        done.append(replace(process, deadlocks=own, elsewhere=texts))
    return done


def _with_knots(processes: Mapping[Pid, ProcessNow]) -> dict[Pid, ProcessNow]:
    """The same; who waits for one of several threads, all of which wait for each other, has one of them as holder."""
    found = knots(
        {
            thread.tid: (pid, thread.waits_for)
            for pid, process in processes.items()
            for thread in process.threads
            if thread.waits_for is not None and (thread.waits_for.could or not thread.is_idle)
        }
    )
    return {
        pid: replace(process, threads=[_held(it, found) for it in process.threads])
        for pid, process in processes.items()
    }


def _held(thread: ThreadNow, found: Mapping[Tid, tuple[Pid, Tid]]) -> ThreadNow:
    if thread.waits_for is None or thread.tid not in found:
        return thread
    pid, tid = found[thread.tid]
    return replace(thread, is_idle=False, waits_for=replace(thread.waits_for, held_by_pid=pid, held_by_tid=tid))


def _holders(process: ProcessNow) -> list[Pid]:
    """Other processes whose threads have what threads of this one wait for, or one of which has."""
    wanted = [thread.waits_for for thread in process.threads if thread.waits_for is not None]
    found = [each.held_by_pid for each in wanted if each.kind in OF_THREADS and each.held_by_tid is not None]
    found += [pid for each in wanted for pid, _ in each.could]
    return [pid for pid in dict.fromkeys(found) if pid is not None and pid != process.pid]


def _waits(processes: Mapping[Pid, ProcessNow]) -> dict[Tid, Tid]:
    return {tid: holder for process in processes.values() for tid, holder in endless_waits(process.threads).items()}


def _at_once(cycle: Sequence[Tid], pids: set[Pid], others: Sequence[tuple[Pid, Tid]]) -> bool:
    """Whether all wait at one moment: several processes are looked at one after another, so once more.

    others: threads, with their processes, that could have ended these waits, too.
    """
    if len(pids) == 1 and not others:
        return True
    pids = pids | {pid for pid, _ in others}
    tids = {*cycle, *(tid for _, tid in others)}
    before = _rests(pids, tids)
    try:
        waits = _waits(_with_knots({pid: process_now(pid) for pid in pids}))
    except (TargetError, UnsupportedError):
        return False
    goes_on = all(waits.get(tid) == wanted for tid, wanted in zip(cycle, (*cycle[1:], cycle[0])))
    return goes_on and before == _rests(pids, tids)


def _rests(pids: set[Pid], tids: Collection[Tid]) -> list[tuple[Tid, str, int]]:
    """How often each of these threads has left a CPU."""
    found = ((tid, tasks.thread_status(pid, tid)) for pid in sorted(pids) for tid in sorted(tids))
    return [(tid, it.run_state, it.switches) for tid, it in found if it is not None]
