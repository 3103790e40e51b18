"""What to record and how, as decided by the command line."""

from __future__ import annotations

from bpfprof.dataclass import dataclass
from bpfprof.model.ids import Pid


@dataclass(frozen=True)
class CaptureOptions:
    """`duration_s` None: until a signal or the end of the targets. `mode` is both, cpu or offcpu."""

    pids: tuple[Pid, ...] = ()
    duration_s: float | None = None
    rate_hz: int = 99
    events: tuple[str, ...] = ()  # counted beside the clock: names of kernel.perf_events
    event_period: int = 0  # a sample each so many of them; 0: about a thousand samples a second
    counts_calls: bool = False  # of CUDA's libraries and the like: see calls.txt
    mode: str = "both"
    follow_children: bool = True
    kills: bool = False  # a launched command that outlives its recording
    until_eof: bool = False  # its standard input ends it: whoever started it reads the recording, so it shows nothing
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
    async_rate_hz: int = 10  # how often asyncio tasks are looked at; 0: never
    takes_marks: bool = True  # of bpfprof.marks
    looks_at_waits: bool = True  # who has what threads wait for, while it goes on and at the end
