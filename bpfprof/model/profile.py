"""A profile: every thread's wall time, shared out over stacks. What renderers take in; they know nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from bpfprof.model.frames import Frame
from bpfprof.model.ids import Pid, Tid


class ThreadState(IntEnum):
    """What a thread was doing during an interval; every nanosecond of a thread is in exactly one."""

    ON_CPU = 0
    RUNQUEUE = 1
    OFF_CPU = 2


# One row a (thread, stack, state): thread and stack are indices into Profile.threads and Profile.stacks.
# total_ns: wall time; count: samples (ON_CPU) or intervals (others); max_ns: longest interval (0 for ON_CPU).
WEIGHT_DTYPE = np.dtype(
    [("thread", "<u4"), ("stack", "<u4"), ("state", "u1"), ("count", "<u8"), ("total_ns", "<u8"), ("max_ns", "<u8")]
)

# One row an interval, sorted by (thread, start_ns); start_ns counts from the start of the recording. The rows of one
# thread follow each other without gap or overlap from ThreadTime.first_ns to ThreadTime.last_ns.
TIMELINE_DTYPE = np.dtype(
    [("thread", "<u4"), ("stack", "<u4"), ("state", "u1"), ("start_ns", "<u8"), ("duration_ns", "<u8")]
)


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """Where the wall time of one thread went, in nanoseconds; first_ns and last_ns count from the recording's start."""

    pid: Pid
    tid: Tid
    process_name: str
    thread_name: str
    first_ns: int
    last_ns: int
    on_cpu_ns: int
    runqueue_ns: int
    off_cpu_ns: int
    sample_count: int
    wait_count: int

    @property
    def wall_ns(self) -> int:
        """Time the thread was watched: from the start of the recording or its birth to the end or its death."""
        return self.last_ns - self.first_ns

    @property
    def accounted_ns(self) -> int:
        """on-CPU + run queue + off-CPU; equals wall_ns when nothing was lost."""
        return self.on_cpu_ns + self.runqueue_ns + self.off_cpu_ns


@dataclass(frozen=True, slots=True)
class Quality:
    """How much of the truth the recording holds; every report ends with it."""

    complete_count: int = 0  # stacks (weighted by samples and intervals) walked to their root
    python_only_count: int = 0  # of these, stacks without native frames
    truncated_counts: dict[str, int] = field(default_factory=dict)  # reason -> samples and intervals
    lost_counts: dict[str, int] = field(default_factory=dict)  # reason -> samples, intervals, stacks
    own_cpu_ns: int = 0  # CPU time of bpfprof itself while it recorded
    recording_ns: int = 0  # wall time of the recording
    unfinished: str = ""  # why the recording has no end ("" when it has one)


@dataclass(frozen=True, slots=True)
class RecordingInfo:
    """What was recorded, when, where and how."""

    command_line: tuple[str, ...] = ()
    started_unix_ns: int = 0
    duration_ns: int = 0
    host_name: str = ""
    kernel_release: str = ""
    bpfprof_version: str = ""
    rate_hz: int = 0
    event: str = "cpu-clock"
    mode: str = "both"


@dataclass(frozen=True)
class Profile:
    """Threads, frames, stacks and weights, each referring to the one before by index.

    `stacks` are root first and already carry their marks: a TRUNCATED frame first where the root is missing; a WAIT or
    RUNQUEUE frame last for OFF_CPU and RUNQUEUE weights. The process and thread are not frames: see `threads`.
    `weights` has WEIGHT_DTYPE; `timeline` has TIMELINE_DTYPE, or is None when it was not asked for.
    """

    info: RecordingInfo
    threads: tuple[ThreadTime, ...]
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]
    weights: npt.NDArray[np.void]
    quality: Quality
    timeline: npt.NDArray[np.void] | None = None
