"""What to record and how, as decided by the command line."""

from __future__ import annotations

from dataclasses import dataclass

from bpfprof.model.ids import Pid


@dataclass(frozen=True)
class CaptureOptions:
    """`duration_s` None: until a signal or the end of the targets. `mode` is both, cpu or offcpu."""

    pids: tuple[Pid, ...] = ()
    duration_s: float | None = None
    rate_hz: int = 99
    event: str = "cpu-clock"
    mode: str = "both"
    follow_children: bool = True
    watches_all: bool = False  # every process of the machine, instead of `pids`
    cgroups: tuple[str, ...] = ()  # every process in them, instead of `pids`
    containers: tuple[str, ...] = ()  # by their ids, or how these begin
    table_memory_mb: int = 256  # for unwind tables
    native: bool = True  # native frames
    native_lines: bool = False  # their lines and inlined functions
    kernel: bool = False  # kernel frames with every stack
    wakers: bool = True  # who ends waits
    min_block_us: int = 100  # shorter waits are added up and have no stack
    max_switches: int = 500  # about so many waits a second and thread have stacks; 0: all
