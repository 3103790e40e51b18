"""What threads wait for and who has it, looked at when a recording ends: LOCK_HOLDER_DTYPE and a table of waits out.

Wake-ups tell who held a lock, but only when it is released; and what is waited for they do not tell at all. So threads
that have waited for some time are looked at before the recording ends, as `bpfprof dump` does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.account.reasons import FUTEX_CALLS
from bpfprof.capture.file_locks import any_is_locked
from bpfprof.capture.knots import knots
from bpfprof.capture.now import LOOKS_AT_GIL, is_at_the_gil, waiting_now
from bpfprof.capture.processes import Processes
from bpfprof.code.maps import NativeCode
from bpfprof.dataclass import dataclass
from bpfprof.errors import TargetError
from bpfprof.kernel.events import ThreadTable
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.now import GIL, OF_PROCESSES, OF_THREADS, WaitsFor
from bpfprof.model.samples import LOCK_HOLDER_DTYPE, SOCKET_CALLS
from bpfprof.model.syscalls import syscall_numbers
from bpfprof.proc import tasks
from bpfprof.proc.cpu_limits import CpuLimits
from bpfprof.proc.last_run import seconds_since_run
from bpfprof.proc.memory import TimeIsOverError
from bpfprof.recording.part import LIMITS, LOOKED
from bpfprof.recording.tables import RecordedLastWait, table_row
from bpfprof.recording.writer import Sink

_WAITED_NS = 50_000_000  # less is not worth a look
_LASTING_NS, _LOOK_S, _LOOK_REST = 2_000_000_000, 0.2, 100  # while it goes on; the last times the CPU time of a look
_LONG_NS = 1_000_000_000  # what has no holder is looked at from here on
_LOOKS_NS = 1_000_000_000  # of CPU time, for all processes; a look at one thread takes some 2 ms
_MOST_THREADS = 200  # of a process that is looked at
_SLEEPS, _SLEEP_LOOKS = sorted(syscall_numbers("nanosleep", "clock_nanosleep")), 3
_UNKNOWN, _BLOCKED = (int(abi.ThreadState[f"BP_THREAD_{name}"]) for name in ("UNKNOWN", "BLOCKED"))
# Calls that wait for something which may have a name; the others wait for a time.
_FOR_SOMETHING = sorted(
    syscall_numbers(
        *("flock", "fcntl", "wait4", "waitid", "read", "readv", "write", "writev", "open", "openat", *SOCKET_CALLS),
        *("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"),
    )
)


@dataclass(frozen=True)
class _Look:
    """At one thread between two moments."""

    begin_ns: int
    end_ns: int
    pid: Pid
    tid: Tid
    waits_for: WaitsFor
    is_idle: bool = False


class LooksWhileItGoesOn:
    """What else is known at the end only, for a sink that is looked at while it grows.

    Who waits for what is looked at when others wait for long than did before, and for 1% of a CPU.
    """

    def __init__(self, processes: Processes, table: ThreadTable, limits: CpuLimits, sink: Sink) -> None:
        self._processes, self._table, self._limits, self._sink = processes, table, limits, sink
        self._waiting = b""
        self._next_s = 0.0

    def take(self, time_ns: int, records: npt.NDArray[np.void]) -> None:
        """records: of all threads at that time."""
        self._sink.write(LIMITS, self._limits.told(self._processes.by_pid))
        waits = np.isin(records["state"], (_UNKNOWN, _BLOCKED)) & (records["wake_ns"] == 0)
        waits &= time_ns - records["since_ns"].astype(np.int64) >= _LASTING_NS
        waiting, begin_s = np.sort(records["since_ns"][waits]).tobytes(), time.monotonic()
        if waiting == self._waiting or begin_s < self._next_s:
            return
        self._waiting, cost_s = waiting, time.thread_time()
        self._sink.write(LOOKED)
        look_at_waits(
            self._processes, self._table, self._sink, lambda: time.monotonic() - begin_s > _LOOK_S, _LASTING_NS
        )
        self._next_s = time.monotonic() + _LOOK_REST * (time.thread_time() - cost_s)


def look_at_waits(
    processes: Processes,
    table: ThreadTable,
    sink: Sink,
    is_over: Callable[[], bool],
    least_ns: int = _WAITED_NS,
    meanwhile: Callable[[], None] = lambda: None,
) -> int:
    """The processes with the longest waits come first. Returns how many there was no time for.

    meanwhile: called between looks at processes, which may have ended by then.
    """
    begin_ns, cost_ns = time.monotonic_ns(), time.thread_time_ns()
    tids, records = table.read()
    waited_ns = begin_ns - records["since_ns"].astype(np.int64)
    # What one waits for that has not run since it is watched is not known here.
    is_known = records["state"] == _BLOCKED
    may_wait = (records["state"] == _UNKNOWN) | (is_known & np.isin(records["syscall"], FUTEX_CALLS))
    may_wait |= is_known & np.isin(records["syscall"], _FOR_SOMETHING) & (waited_ns >= _LONG_NS)
    chosen = may_wait & (records["wake_ns"] == 0) & (waited_ns >= least_ns)
    since_ns = dict(zip(tids[chosen].tolist(), records["since_ns"][chosen].tolist()))
    longest = sorted(zip(waited_ns[chosen].tolist(), records["tgid"][chosen].tolist()), reverse=True)
    looked: list[_Look] = []
    pids = [pid for pid in dict.fromkeys(pid for _, pid in longest) if _may_be_looked_at(processes, Pid(pid))]
    left_out = 0
    for number, pid in enumerate(pids):
        if time.thread_time_ns() - cost_ns > _LOOKS_NS or is_over():
            left_out = len(pids) - number
            break
        before_ns = time.thread_time_ns()
        meanwhile()
        cost_ns += time.thread_time_ns() - before_ns  # is none of the looks
        if not _may_be_looked_at(processes, Pid(pid)):
            continue
        try:
            looked += _look_at(processes, Pid(pid))
        except TimeIsOverError:
            left_out = len(pids) - number
            break
    if not left_out:
        looked += _look_at_awaited(looked, processes, is_over)
    kept = _with_knots(_of_one_wait(looked, since_ns, table)) if looked else []
    looked = kept + _of_the_gil(looked, kept)
    looked += _look_at_sleeps(processes, table, is_over)
    if looked:
        _write(looked, processes, sink)
    return left_out


def _look_at_awaited(looked: list[_Look], processes: Processes, is_over: Callable[[], bool]) -> list[_Look]:
    """At processes of one thread that others wait for, and that run no Python: they may wait for these."""
    holders = (look.waits_for.held_by_pid for look in looked if look.waits_for.kind in OF_PROCESSES)
    found: list[_Look] = []
    for pid in dict.fromkeys(pid for pid in holders if pid is not None):
        process = processes.by_pid.get(pid)
        if process is None or process.interpreter is not None or len(tasks.list_threads(pid)) != 1:
            continue
        if is_over():
            break
        with contextlib.suppress(TimeIsOverError):
            found += _look_at(processes, pid)
    return found


def _look_at_sleeps(processes: Processes, table: ThreadTable, is_over: Callable[[], bool]) -> list[_Look]:
    """At threads that sleep for a database or a file that is locked: who waits so looks again after 100 ms or less, so
    at once."""
    looked: list[_Look] = []
    if not any_is_locked():
        return looked
    _, records = table.read()
    sleeps = (records["state"] == _BLOCKED) & np.isin(records["syscall"], _SLEEPS)
    for pid in map(Pid, dict.fromkeys(records["tgid"][sleeps].tolist())):
        for _ in range(_SLEEP_LOOKS):
            if is_over():
                return looked
            if not _may_be_looked_at(processes, pid):
                break
            tids, records = table.read()
            asleep = np.isin(records["syscall"], _SLEEPS)
            since_ns = dict(zip(tids[asleep].tolist(), records["since_ns"][asleep].tolist()))
            try:
                seen = [each for each in _look_at(processes, pid, processes.code) if each.tid in since_ns]
            except TimeIsOverError:
                return looked
            of_one_wait = _of_one_wait(seen, since_ns, table)
            looked += of_one_wait
            if of_one_wait or not seen:
                break
    return looked


def _of_one_wait(looked: list[_Look], since_ns: dict[int, int], table: ThreadTable) -> list[_Look]:
    """At threads that waited all the while; since_ns: by thread, when they were chosen."""
    tids, records = table.read()
    waits_on = (records["wake_ns"] == 0) & np.isin(records["state"], (_UNKNOWN, _BLOCKED))
    after_ns = dict(zip(tids[waits_on].tolist(), records["since_ns"][waits_on].tolist()))
    return [look for look in looked if look.tid in since_ns and since_ns[look.tid] == after_ns.get(look.tid)]


def _with_knots(looked: list[_Look]) -> list[_Look]:
    """The same; who waits for one of several threads, all of which wait for each other, has one of them as holder. Who
    is idle else is left out."""
    found = knots({look.tid: (look.pid, look.waits_for) for look in looked})
    chosen = {
        tid: replace(look.waits_for, held_by_pid=found[tid][0], held_by_tid=found[tid][1])
        for look in looked
        if (tid := look.tid) in found
    }
    kept = [look for look in looked if look.tid in chosen or not look.is_idle]
    return [replace(look, waits_for=chosen.get(look.tid, look.waits_for)) for look in kept]


def _of_the_gil(looked: list[_Look], kept: list[_Look]) -> list[_Look]:
    """At threads that want the GIL whose holder waits, by others or not, for what they have. They look again each 5 ms,
    but the holder has waited all the while, and so has the GIL."""
    held = {look.tid: look.waits_for.held_by_tid for look in kept}
    found = []
    for look in (each for each in looked if held and each.tid not in held):
        tid, seen = look.waits_for.held_by_tid, set[Tid]()
        while look.waits_for.kind == GIL and tid in held and tid not in seen:
            seen.add(tid)
            tid = held[tid]
            if tid == look.tid:
                found.append(look)
    return found


def _write(looked: list[_Look], processes: Processes, sink: Sink) -> None:
    index_of = processes.threads.index_of
    looked = [look for look in looked if look.tid in index_of]
    rows = [
        (look.begin_ns, look.end_ns, index_of[look.tid], index_of[holder] + 1, look.waits_for.has_end)
        for look in looked
        if look.waits_for.kind in (GIL, *OF_THREADS)
        and (holder := look.waits_for.held_by_tid) is not None
        and holder in index_of
    ]
    sink.write("lock_holders", arrays={"rows": np.array(rows, LOCK_HOLDER_DTYPE)})
    _write_last_waits(looked, index_of, sink)


def _write_last_waits(looked: list[_Look], index_of: dict[int, int], sink: Sink) -> None:
    tids_of: dict[Pid, list[Tid]] = {}
    for look in looked:
        tids_of.setdefault(look.pid, []).append(look.tid)
    waited_s = {tid: for_s for pid, tids in tids_of.items() for tid, for_s in seconds_since_run(pid, tids).items()}
    rows: list[dict[str, Any]] = []
    for look in looked:
        wanted = look.waits_for
        pid = wanted.held_by_pid
        is_own = pid == look.pid and wanted.held_by_tid is None  # any of its threads
        holder = index_of.get(wanted.held_by_tid or (-1 if is_own else pid) or -1, -1) + 1
        held_by = (
            f"its own process ({pid})" if is_own else f"{tasks.process_name(pid)} ({pid})" if pid is not None else ""
        )
        waited_ns = int(1e9 * waited_s.get(look.tid, 0.0))
        row = RecordedLastWait(
            index_of[look.tid], wanted.kind, wanted.name, holder, held_by, wanted.nobody, waited_ns, wanted.has_end
        )
        rows.append(table_row(len(rows), row))
    sink.write("last_waits", {"rows": rows})


def _may_be_looked_at(processes: Processes, pid: Pid) -> bool:
    process = processes.by_pid.get(pid)
    return process is not None and process.interpreter is not None and len(tasks.list_threads(pid)) <= _MOST_THREADS


def _look_at(processes: Processes, pid: Pid, code: NativeCode | None = None) -> list[_Look]:
    """At the threads of a process that wait for something that has a name, and not for work that anyone may bring."""
    process = processes.by_pid[pid]
    begin_ns = time.monotonic_ns()
    try:
        threads = waiting_now(process, code)
        for _ in range(LOOKS_AT_GIL if is_at_the_gil(threads) else 0):
            threads = waiting_now(process, code)
            if not is_at_the_gil(threads):
                break
    except TargetError:
        return []
    end_ns = time.monotonic_ns()
    return [
        _Look(begin_ns, end_ns, pid, thread.tid, thread.waits_for, thread.is_idle)
        for thread in threads
        if thread.waits_for and (thread.waits_for.could or not thread.is_idle)
    ]
