"""What to record and how, as decided by the command line."""

from __future__ import annotations

from dataclasses import dataclass

from bpfprof.model.ids import Pid


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """`duration_s` None: until a signal or the end of the targets. `mode` is both, cpu or offcpu."""

    pids: tuple[Pid, ...] = ()
    duration_s: float | None = None
    rate_hz: int = 99
    event: str = "cpu-clock"
    mode: str = "both"
    follow_children: bool = True
