"""Who holds the locks that threads wait for, looked at while the recording goes on: rows of LOCK_HOLDER_DTYPE out.

Wake-ups tell who held a lock, but only when it is released. So threads that have waited for some time are looked at
before the recording ends, as `bpfprof dump` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bpfprof import abi
from bpfprof.account.reasons import FUTEX_CALLS
from bpfprof.capture.now import waiting_now
from bpfprof.capture.processes import Processes
from bpfprof.errors import TargetError
from bpfprof.kernel.events import ThreadTable
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.samples import LOCK_HOLDER_DTYPE
from bpfprof.proc import tasks
from bpfprof.recording.writer import Sink

_WAITED_NS = 50_000_000  # less is not worth a look
_LOOKS_NS = 200_000_000  # for all processes; a look at one thread takes some 2 ms
_MOST_THREADS = 200  # of a process that is looked at
_UNKNOWN, _BLOCKED = (int(abi.ThreadState[f"BP_THREAD_{name}"]) for name in ("UNKNOWN", "BLOCKED"))
_OF_LOCKS = ("lock", "thread")


def look_at_locks(processes: Processes, table: ThreadTable, sink: Sink, is_over: Callable[[], bool]) -> None:
    """The processes with the longest waits come first, until it is over."""
    begin_ns = time.monotonic_ns()
    tids, records = table.read()
    waited_ns = begin_ns - records["since_ns"].astype(np.int64)
    # What one waits for that has not run since it is watched is not known here.
    may_wait = (records["state"] == _UNKNOWN) | (
        (records["state"] == _BLOCKED) & np.isin(records["syscall"], FUTEX_CALLS)
    )
    chosen = may_wait & (records["wake_ns"] == 0) & (waited_ns >= _WAITED_NS)
    since_ns = dict(zip(tids[chosen].tolist(), records["since_ns"][chosen].tolist()))
    longest = sorted(zip(waited_ns[chosen].tolist(), records["tgid"][chosen].tolist()), reverse=True)
    looked: list[tuple[int, int, Tid, Tid]] = []
    for pid in dict.fromkeys(pid for _, pid in longest):
        if is_over() or time.monotonic_ns() - begin_ns > _LOOKS_NS:
            break
        looked += _look_at(processes, Pid(pid))
    if not looked:
        return
    tids, records = table.read()
    waits_on = (records["wake_ns"] == 0) & np.isin(records["state"], (_UNKNOWN, _BLOCKED))
    after_ns = dict(zip(tids[waits_on].tolist(), records["since_ns"][waits_on].tolist()))
    index_of = processes.threads.index_of
    rows = [
        (from_ns, to_ns, index_of[tid], index_of[holder] + 1)
        for from_ns, to_ns, tid, holder in looked
        if tid in since_ns and since_ns[tid] == after_ns.get(tid) and {tid, holder} <= index_of.keys()
    ]
    sink.write("lock_holders", arrays={"rows": np.array(rows, LOCK_HOLDER_DTYPE)})


def _look_at(processes: Processes, pid: Pid) -> list[tuple[int, int, Tid, Tid]]:
    """(from when, to when, a thread, who holds what it waits for)"""
    process = processes.by_pid.get(pid)
    if process is None or process.interpreter is None or len(tasks.list_threads(pid)) > _MOST_THREADS:
        return []
    begin_ns = time.monotonic_ns()
    try:
        threads = waiting_now(process)
    except TargetError:
        return []
    end_ns = time.monotonic_ns()
    wanted = [(thread.tid, thread.waits_for) for thread in threads]
    return [
        (begin_ns, end_ns, tid, it.held_by_tid) for tid, it in wanted if it and it.kind in _OF_LOCKS and it.held_by_tid
    ]
