"""Processes as they are now -> the same with their deadlocks, also those that go through other processes."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from bpfprof.capture.knots import knots
from bpfprof.capture.now import LOOKS_AT_GIL, is_at_the_gil, process_now
from bpfprof.capture.polled import OPEN_ENDS
from bpfprof.errors import TargetError, UnsupportedError
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.now import GIL, OF_THREADS, ProcessNow, ThreadNow, WaitsFor
from bpfprof.proc import tasks
from bpfprof.query.waits.wait_graph import cycles, endless_waits

_OTHERS = 16  # processes that are looked at only because they have what one waits for


def with_deadlocks(processes: Sequence[ProcessNow]) -> list[ProcessNow]:
    """Each deadlock is where a thread of it is; who has what these wait for is looked at, too."""
    known = {process.pid: _seen_at_the_gil(process) for process in processes}
    waiting, most = [*known.values()], len(processes) + _OTHERS
    while waiting:
        for pid in _holders(waiting.pop()):
            if pid not in known and len(known) < most:
                with contextlib.suppress(TargetError, UnsupportedError):
                    known[pid] = process_now(pid)
                    waiting.append(known[pid])
    known = _with_knots(known)
    pid_of = {thread.tid: process.pid for process in known.values() for thread in process.threads}
    wanted_of = {thread.tid: thread.waits_for for process in known.values() for thread in process.threads}
    found = [cycle for cycle in cycles(_waits(known)) if _at_once(cycle, _behind(cycle, wanted_of), pid_of, wanted_of)]
    done = []
    for process in (known[each.pid] for each in processes):
        own = [cycle for cycle in found if any(pid_of[tid] == process.pid for tid in cycle)]
        elsewhere = {tid: pid_of[tid] for cycle in own for tid in cycle if pid_of[tid] != process.pid}
        names = {thread.tid: thread.name for pid in elsewhere.values() for thread in known[pid].threads}
        texts = {tid: f"{names[tid]} of process {pid}" for tid, pid in elsewhere.items()}
        done.append(replace(process, deadlocks=own, elsewhere=texts))
    return done


def _seen_at_the_gil(process: ProcessNow) -> ProcessNow:
    """The same, or a later look at it, if there is one more thread to be seen to wait for the GIL."""
    with_variables = any(thread.variables for thread in process.threads)
    for _ in range(LOOKS_AT_GIL):
        if not is_at_the_gil(process.threads):
            break
        with contextlib.suppress(TargetError, UnsupportedError):
            process = process_now(process.pid, with_variables)
    return process


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


def _behind(cycle: Sequence[Tid], wanted_of: Mapping[Tid, WaitsFor | None]) -> set[Tid]:
    """A cycle and all threads that could end its waits, and so on: none of them may go on."""
    found: set[Tid] = set()
    waiting = [*cycle]
    while waiting:
        tid = waiting.pop()
        wanted = wanted_of.get(tid)
        if tid not in found and wanted is not None:
            waiting += [each for _, each in wanted.could]
            waiting += [wanted.held_by_tid] if wanted.held_by_tid is not None else []
        found.add(tid)
    return found


def _at_once(
    cycle: Sequence[Tid], behind: set[Tid], pid_of: Mapping[Tid, Pid], wanted_of: Mapping[Tid, WaitsFor | None]
) -> bool:
    """Whether all wait at one moment: several processes are looked at one after another, so once more; and so where one
    wants the GIL, which is looked for again each 5 ms. Who has that must not have run meanwhile."""
    kinds = {wanted.kind for tid in behind if (wanted := wanted_of.get(tid)) is not None}
    pids = {pid_of[tid] for tid in behind if tid in pid_of}
    if len(pids) == 1 and len(behind) == len(cycle) and GIL not in kinds:
        return True
    still = {tid for tid in behind if (wanted := wanted_of.get(tid)) is not None and wanted.kind != GIL}
    before = _rests(pids, still)
    OPEN_ENDS.expire()
    try:
        waits = _waits(_with_knots({pid: _seen_at_the_gil(process_now(pid)) for pid in pids}))
    except (TargetError, UnsupportedError):
        return False
    goes_on = all(waits.get(tid) == wanted for tid, wanted in zip(cycle, (*cycle[1:], cycle[0])))
    return goes_on and before == _rests(pids, still)


def _rests(pids: set[Pid], tids: Collection[Tid]) -> list[tuple[Tid, str, int]]:
    """How often each of these threads has left a CPU."""
    found = ((tid, tasks.thread_status(pid, tid)) for pid in sorted(pids) for tid in sorted(tids))
    return [(tid, it.run_state, it.switches) for tid, it in found if it is not None]
