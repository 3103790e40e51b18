"""A Profile -> where the wall time of each thread went, as a recording keeps it; and which threads it misses."""

from __future__ import annotations

from typing import Any

from bpfprof.model.profile import Profile, ThreadTime


def accounting_rows(profile: Profile) -> list[dict[str, Any]]:
    """Members of a row of the chunk `accounting`, one row a thread."""
    return [
        {
            "pid": int(thread.pid),
            "tid": int(thread.tid),
            "process_name": thread.process_name,
            "name": thread.thread_name,
            "wall_ns": thread.wall_ns,
            "on_cpu_ns": thread.on_cpu_ns,
            "runqueue_ns": thread.runqueue_ns,
            "off_cpu_ns": thread.off_cpu_ns,
            "off_by_reason_ns": dict(thread.off_by_reason),
        }
        for thread in profile.threads
    ]


def unaccounted(profile: Profile, tolerance: float) -> list[ThreadTime]:
    """Threads whose on-CPU, run queue and off-CPU time differs from their wall time by more than this part of it."""
    return [
        thread
        for thread in profile.threads
        if thread.wall_ns > 0 and abs(thread.accounted_ns - thread.wall_ns) > tolerance * thread.wall_ns
    ]
