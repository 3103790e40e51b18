"""Waits that several threads could end -> those that none of them ever will: all of these wait for each other."""

from __future__ import annotations

from collections.abc import Mapping

from bpfprof.model.ids import Pid, Tid
from bpfprof.model.now import OF_THREADS, WaitsFor


def knots(waits: Mapping[Tid, tuple[Pid, WaitsFor]]) -> dict[Tid, tuple[Pid, Tid]]:
    """waits: for each thread that waits its process and what for. For each that waits without end for what only threads
    can do that wait so, too, one of those: of another process, if there is one."""
    could = {tid: _could(wanted) for tid, (_, wanted) in waits.items()}
    left = {tid for tid, threads in could.items() if threads}
    while True:
        free = {tid for tid in left if any(other not in left for _, other in could[tid])}
        if not free:
            break
        left -= free
    several = (tid for tid in left if waits[tid][1].could)
    return {tid: min(could[tid], key=lambda each: (each[0] == waits[tid][0], each[1] == tid, each)) for tid in several}


def _could(wanted: WaitsFor) -> tuple[tuple[Pid, Tid], ...]:
    """Who could end it; () where that is not known, or it has an end of its own."""
    if wanted.has_end:
        return ()
    if wanted.kind in OF_THREADS and wanted.held_by_tid is not None:
        return ((wanted.held_by_pid or Pid(0), wanted.held_by_tid),)
    return wanted.could
