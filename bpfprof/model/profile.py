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
# thread, if it has any, follow each other without gap or overlap from ThreadTime.first_ns to ThreadTime.last_ns; what
# the profile leaves out has an empty stack, and its state says nothing.
TIMELINE_DTYPE = np.dtype(
    [("thread", "<u4"), ("stack", "<u4"), ("state", "u1"), ("start_ns", "<u8"), ("duration_ns", "<u8")]
)


# One row a wait, sorted by (thread, start_ns). Many short waits of a thread for one GIL, one after the other, are one.
# thread, stack: as in weights, the stack with its leaf mark; start_ns counts from the start of the recording;
# blocked_ns, runqueue_ns: how long it was blocked, and then runnable; intervals: how many the kernel saw (1, or the
# slices of a wait for a GIL). total_ns, count: blocked time and number of the waits that the row stands for: itself,
# and those like it that were only added up. Rows that come after all others stand for nothing but such waits (one a
# thread and reason): their blocked_ns is 0. reason: place in WaitTable.reasons; task_state: as sched_switch has it.
# waker: place in WaitTable.wakers from 1 on, 0: not known; waker_stack: stack of the waker + 1, 0: none; waker_wait:
# row of the last wait of the waker before it ended this one, + 1, 0: none. lock: address of the futex, 0: it is no wait
# for one. is_idle: the thread had nothing to do (a worker that waits for work, an event loop). holds_gil: as it began.
WAIT_ROW_DTYPE = np.dtype(
    [
        ("start_ns", "<u8"),
        ("blocked_ns", "<u8"),
        ("runqueue_ns", "<u8"),
        ("total_ns", "<u8"),
        ("count", "<u8"),
        ("lock", "<u8"),
        ("thread", "<u4"),
        ("stack", "<u4"),
        ("intervals", "<u4"),
        ("waker", "<u4"),
        ("waker_stack", "<u4"),
        ("waker_wait", "<u4"),
        ("reason", "<u2"),
        ("task_state", "<u2"),
        ("is_idle", "?"),
        ("holds_gil", "?"),
    ]
)

# One row a (waiter, holder, holder's stack): how long the thread waited for a GIL that the holder had. thread, holder:
# places in Profile.threads; holder is -1 and stack 0 where it is not known; stack: place in Profile.stacks + 1.
GIL_ROW_DTYPE = np.dtype([("thread", "<u4"), ("holder", "<i4"), ("stack", "<u4"), ("ns", "<u8")])

# The same for single waits, sorted by wait: `wait` is the row of the wait table; ns sum to its total_ns.
HOLDER_ROW_DTYPE = np.dtype([("wait", "<u4"), ("holder", "<i4"), ("stack", "<u4"), ("ns", "<u8")])


_NO_PID, _NO_TID = Pid(0), Tid(0)


@dataclass(frozen=True, slots=True)
class Waker:
    """What ended waits: a thread (of a target or not), the timer, or another interrupt.

    `thread`: place in Profile.threads, -1: it is none of them. A pid of 0 and an empty name: not a thread.
    """

    kind: str  # "thread", "timer", "interrupt"
    pid: Pid = _NO_PID
    tid: Tid = _NO_TID
    process_name: str = ""
    thread_name: str = ""
    thread: int = -1


@dataclass(frozen=True)
class WaitTable:
    """Every wait: WAIT_ROW_DTYPE, what its columns refer to, and behind whom waits for GILs were: HOLDER_ROW_DTYPE."""

    rows: npt.NDArray[np.void]
    reasons: tuple[str, ...]
    wakers: tuple[Waker, ...]
    holders: npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """Where the wall time of one thread went, in nanoseconds; first_ns and last_ns count from the recording's start.

    on_cpu_ns is the scheduler's; runqueue_ns and off_cpu_ns are what the recording holds of waits.
    """

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
    off_by_reason: tuple[tuple[str, int], ...] = ()  # (reason, nanoseconds), most first; they sum to off_cpu_ns

    @property
    def wall_ns(self) -> int:
        """Time the thread was watched: from the start of the recording or its birth to the end or its death."""
        return self.last_ns - self.first_ns

    @property
    def accounted_ns(self) -> int:
        """on-CPU + run queue + off-CPU; equals wall_ns when no wait was lost."""
        return self.on_cpu_ns + self.runqueue_ns + self.off_cpu_ns


@dataclass(frozen=True, slots=True)
class Quality:
    """How much of the truth the recording holds; every report ends with it."""

    complete_count: int = 0  # stacks (weighted by samples and intervals) walked to their root
    python_only_count: int = 0  # of these, stacks without native frames
    truncated_counts: dict[str, int] = field(default_factory=dict)  # reason -> samples and intervals
    lost_counts: dict[str, int] = field(default_factory=dict)  # reason -> samples, intervals, stacks, as far as known
    own_cpu_ns: int = 0  # CPU time of bpfprof itself while it recorded
    recording_ns: int = 0  # wall time of the recording
    unfinished: str = ""  # why the recording has no end ("" when it has one)
    without_rules_count: int = 0  # of complete_count, stacks that lead through code without unwind rules
    problem_counts: dict[str, int] = field(default_factory=dict)  # what native stacks may lack -> how often
    short_count: int = 0  # intervals off the CPU shorter than min_block_us, which have no stack
    short_ns: int = 0  # their time, blocked and on the run queue
    unsampled_count: int = 0  # intervals that are shown with the stacks of others of their thread
    unsampled_long_count: int = 0  # long ones that have none, for there is no other like them


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
    min_block_us: int = 0


@dataclass(frozen=True)
class Profile:
    """Threads, frames, stacks and weights, each referring to the one before by index.

    `stacks` are root first and already carry their marks: a TRUNCATED frame first where the root is missing; a WAIT or
    RUNQUEUE frame last for OFF_CPU and RUNQUEUE weights. The process and thread are not frames: see `threads`.
    `weights` has WEIGHT_DTYPE; `timeline` has TIMELINE_DTYPE, or is None when it was not asked for. Short waits have
    the stacks [short waits] (SHORT_WAITS frame) + leaf mark; on the timeline that frame alone, OFF_CPU, for what lies
    between the waits with a row. `waits` is None when it was not asked for; `gil_waits` has GIL_ROW_DTYPE, sorted by
    thread: of each thread the rows sum to its time with the reason "gil".
    """

    info: RecordingInfo
    threads: tuple[ThreadTime, ...]
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]
    weights: npt.NDArray[np.void]
    quality: Quality
    timeline: npt.NDArray[np.void] | None = None
    waits: WaitTable | None = None
    gil_waits: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, GIL_ROW_DTYPE))
