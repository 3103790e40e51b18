"""A Profile -> threads whose wall time it does not account for."""

from __future__ import annotations

from bpfprof.model.profile import Profile, ThreadTime


def unaccounted(profile: Profile, tolerance: float) -> list[ThreadTime]:
    """Threads whose on-CPU, run queue and off-CPU time differs from their wall time by more than this part of it."""
    return [
        thread
        for thread in profile.threads
        if thread.wall_ns > 0 and abs(thread.accounted_ns - thread.wall_ns) > tolerance * thread.wall_ns
    ]
