"""When threads ran last, by the scheduler's own clock: ids in, seconds since then out.

`se.exec_start` of /proc/PID/task/TID/sched is the clock of the thread's CPU when its time was last counted, which for a
thread that sleeps is when it left the CPU (update_curr(), kernel/sched/fair.c, Linux 5.10 to 6.12). The clock is each
CPU's own, and leaves out interrupts; so it is read on the same CPU, by letting this thread run there for a moment. It
is 0 once a thread was moved to another CPU and has not run there (migrate_task_rq_fair()): then it is not known.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable

from bpfprof.model.ids import Pid, Tid
from bpfprof.proc.tasks import last_cpu, scheduler_text

_EXEC_START = re.compile(rb"^se\.exec_start\s*:\s*(\d+)\.(\d{6})", re.MULTILINE)  # milliseconds


def seconds_since_run(pid: Pid, tids: Iterable[Tid]) -> dict[Tid, float]:
    """Of threads that sleep; without those of which it is not known.

    That is where the kernel has no CONFIG_SCHED_DEBUG, the CPU is not ours to use, or the thread was moved as it slept.
    """
    of_cpu: dict[int, list[tuple[Tid, int]]] = {}
    for tid in tids:
        cpu, start_ns = last_cpu(pid, tid), _exec_start_ns(scheduler_text(pid, tid))
        if cpu is not None and start_ns:
            of_cpu.setdefault(cpu, []).append((tid, start_ns))
    found: dict[Tid, float] = {}
    before = os.sched_getaffinity(0)
    try:
        for cpu, threads in of_cpu.items():
            with contextlib.suppress(OSError):  # it is in no cpuset of ours, or offline
                os.sched_setaffinity(0, {cpu})
                os.sched_yield()  # counts our own time up to now
                now_ns = _exec_start_ns(scheduler_text(Pid(os.getpid()), Tid(os.getpid())))
                found.update({tid: (now_ns - start_ns) / 1e9 for tid, start_ns in threads if now_ns >= start_ns})
    finally:
        os.sched_setaffinity(0, before)
    return found


def _exec_start_ns(text: bytes) -> int:
    """0 when it is not there."""
    match = _EXEC_START.search(text)
    return int(match[1]) * 1_000_000 + int(match[2]) if match else 0
