"""Processes as they are now -> the same with their deadlocks, also those that go through other processes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bpfprof.capture.now import process_now
from bpfprof.errors import TargetError, UnsupportedError
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.now import OF_THREADS, ProcessNow
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
    pid_of = {thread.tid: process.pid for process in known.values() for thread in process.threads}
    found = [cycle for cycle in cycles(_waits(known)) if _at_once(cycle, {pid_of[tid] for tid in cycle})]
    done = []
    for process in processes:
        own = [cycle for cycle in found if any(pid_of[tid] == process.pid for tid in cycle)]
        others = {tid: pid_of[tid] for cycle in own for tid in cycle if pid_of[tid] != process.pid}
        names = {thread.tid: thread.name for pid in others.values() for thread in known[pid].threads}
        elsewhere = {tid: f"{names[tid]} of process {pid}" for tid, pid in others.items()}
        done.append(replace(process, deadlocks=own, elsewhere=elsewhere))
    return done


def _holders(process: ProcessNow) -> list[Pid]:
    """Other processes whose threads have what threads of this one wait for."""
    wanted = [thread.waits_for for thread in process.threads if thread.waits_for is not None]
    found = [each.held_by_pid for each in wanted if each.kind in OF_THREADS and each.held_by_tid is not None]
    return [pid for pid in dict.fromkeys(found) if pid is not None and pid != process.pid]


def _waits(processes: Mapping[Pid, ProcessNow]) -> dict[Tid, Tid]:
    return {tid: holder for process in processes.values() for tid, holder in endless_waits(process.threads).items()}


def _at_once(cycle: Sequence[Tid], pids: set[Pid]) -> bool:
    """Whether all wait at one moment: several processes are looked at one after another, so once more."""
    if len(pids) == 1:
        return True
    before = _rests(pids, cycle)
    try:
        waits = _waits({pid: process_now(pid) for pid in pids})
    except (TargetError, UnsupportedError):
        return False
    goes_on = all(waits.get(tid) == wanted for tid, wanted in zip(cycle, (*cycle[1:], cycle[0])))
    return goes_on and before == _rests(pids, cycle)


def _rests(pids: set[Pid], tids: Sequence[Tid]) -> list[tuple[Tid, str, int]]:
    """How often each of these threads has left a CPU."""
    found = ((tid, tasks.thread_status(pid, tid)) for pid in sorted(pids) for tid in tids)
    return [(tid, it.run_state, it.switches) for tid, it in found if it is not None]
