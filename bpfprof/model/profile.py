"""A profile: every thread's wall time, shared out over stacks. What renderers take in; they know nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import cast

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.samples import LOCK_HOLDER_DTYPE
from bpfprof.model.spans import SPAN_HOLDER_DTYPE

# One row a (thread, stack, state, reason): spans added up. thread and stack are indices into Profile.threads and
# Profile.stacks; reason: model.states, 0 but of OFF_CPU. total_ns: wall time; count: samples (ON_CPU) or intervals
# (others); max_ns: longest wait (0 for ON_CPU, and where only sums are known).
WEIGHT_DTYPE = np.dtype(
    [
        ("thread", "<u4"),
        ("stack", "<u4"),
        ("state", "u1"),
        ("reason", "<u2"),
        ("count", "<u8"),
        ("total_ns", "<u8"),
        ("max_ns", "<u8"),
    ]
)

# One row a (waiter, holder, holder's stack): how long the thread waited for a GIL that the holder had. thread, holder:
# places in Profile.threads; holder is -1 and stack 0 where it is not known; stack: place in Profile.stacks + 1.
GIL_ROW_DTYPE = np.dtype([("thread", "<u4"), ("holder", "<i4"), ("stack", "<u4"), ("ns", "<u8")])

# One row for each stretch of time in which an asyncio task was seen to do the same; it is no part of the wall time of
# threads. start_ns, duration_ns: on the clock of the recording. stands_for_ns: what the looks speak for. task: place in
# Profile.tasks. stack: place in Profile.stacks, with an AWAIT mark last. reason: place in AWAIT_REASONS. awaited_by:
# place in Profile.tasks of one that waits for it, -1: none; awaited_by_count: how many do. Of a task that runs, stack
# and reason tell nothing.
TASK_SPAN_DTYPE = np.dtype(
    [
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("stands_for_ns", "<i8"),
        ("task", "<u4"),
        ("stack", "<u4"),
        ("awaited_by", "<i4"),
        ("awaited_by_count", "<u4"),
        ("count", "<u4"),
        ("reason", "u1"),
        ("is_running", "?"),
    ]
)

# One row a (event, thread, stack): what was counted beside the clock, added up. event: place in Profile.events;
# thread, stack: as in WEIGHT_DTYPE; count: samples; total: events.
EVENT_WEIGHT_DTYPE = np.dtype(
    [("event", "u1"), ("thread", "<u4"), ("stack", "<u4"), ("count", "<u8"), ("total", "<u8")]
)

# One row for each time that a program marked (bpfprof/marks.py). start_ns: since the recording began; name: place in
# Profile.mark_names.
PROFILE_MARK_DTYPE = np.dtype([("start_ns", "<i8"), ("duration_ns", "<i8"), ("thread", "<u4"), ("name", "<u4")])

# One row a sample of the clock, when it was taken. Spans share the CPU time out over samples, also to times when there
# was none. time_ns: since the recording began; thread, stack: as in WEIGHT_DTYPE.
PROFILE_SAMPLE_DTYPE = np.dtype([("time_ns", "<i8"), ("thread", "<u4"), ("stack", "<u4")])

# One row for each number of threads that was seen at a time: for how long so many were on a CPU, and runnable, which is
# on a CPU or on the run queue.
CONCURRENCY_DTYPE = np.dtype([("threads", "<i8"), ("on_cpu_ns", "<i8"), ("runnable_ns", "<i8")])

# One row a (thread, function, direction of a copy, flags): calls of libraries, added up. function: place in
# Profile.call_names; others: as in CALL_DTYPE.
PROFILE_CALL_DTYPE = np.dtype(
    [
        *((name, "<u4") for name in ("thread", "function")),
        *((name, "u1") for name in ("direction", "flags")),
        *((name, "<u8") for name in ("count", "total_ns", "max_ns", "bytes")),
        ("lengths", "<u8", (64,)),
    ]
)

_NO_PID, _NO_TID = Pid(0), Tid(0)


@dataclass(frozen=True)
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
class ThreadTime:
    """Where the wall time of one thread went, in nanoseconds; first_ns and last_ns count from the recording's start.

    The sums of its spans. overlap_ns: what the recording holds beyond that, which cannot be: it is damaged.
    thread_count, process_count: more than one where it stands for several (query/tables/merging.py); pid and tid are
    then of the first of them.
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
    overlap_ns: int = 0
    namespace_pid: int = 0  # of the process in its own pid namespace, where that is another
    cgroup: str = ""  # of the process, "" where it is not known
    is_kernel_thread: bool = False
    rank: str = ""  # of the process, as its environment says: `RANK=1`
    given_process_name: str = ""  # what its program calls it, if multiprocessing or Celery made it
    parent_pid: int = 0  # of who made the process, or whose child it was when it was seen first; 0: not known
    thread_count: int = 1
    process_count: int = 1

    @property
    def thread_id(self) -> str:
        """`5983`, or `8 threads` of several."""
        return f"{self.thread_count:,} threads" if self.thread_count > 1 else str(self.tid)

    @property
    def process_id(self) -> str:
        """`5220`, or `4 processes` of several."""
        return f"{self.process_count:,} processes" if self.process_count > 1 else str(self.pid)

    @property
    def worker_name(self) -> str:
        """What tells its process from others that are alike: `rank 1`, `ForkPoolWorker-3`; "" where nothing does."""
        if self.process_count > 1:
            return ""
        return f"rank {self.rank.partition('=')[2]}" if self.rank else self.given_process_name

    @property
    def wall_ns(self) -> int:
        """Time the thread was watched: from the start of the recording or its birth to the end or its death."""
        return self.last_ns - self.first_ns

    @property
    def accounted_ns(self) -> int:
        """on-CPU + run queue + off-CPU; equals wall_ns when no wait was lost."""
        return self.on_cpu_ns + self.runqueue_ns + self.off_cpu_ns + self.overlap_ns


@dataclass(frozen=True)
class Task:
    """A task of asyncio."""

    pid: Pid
    process_name: str
    name: str


@dataclass(frozen=True)
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
    unsampled_count: int = 0  # intervals that were not chosen to have a stack
    untold_count: int = 0  # switches that the kernel did not tell; times are worked out from the scheduler's counters
    missed_tasks: dict[str, int] = field(default_factory=dict)  # asyncio tasks: why not seen -> how often


OFTEN = 0.25  # of the periods of a CPU limit


@dataclass(frozen=True)
class CpuThrottle:
    """What the CPU limit of a control group did while it was recorded.

    cgroup: its path. cpus: that it may use at a time. part: of the periods in which something ran in it, those in which
    it had used up what it may. version: of control groups, 1 or 2.
    """

    cgroup: str
    cpus: float
    part: float
    version: int

    @property
    def stops_often(self) -> bool:
        """So often that it is what a program is short of."""
        return self.part >= OFTEN


@dataclass(frozen=True)
class Connection:
    """A TCP connection: its other end, how long the shortest round trip took, and what it carried."""

    other_end: str
    ns: int
    bytes: int


@dataclass(frozen=True)
class RecordingInfo:
    """What was recorded, when, where and how."""

    command_line: tuple[str, ...] = ()
    started_unix_ns: int = 0
    start_ns: int = 0  # the same on CLOCK_MONOTONIC, which all times of a recording have
    duration_ns: int = 0
    host_name: str = ""
    kernel_release: str = ""
    bpfprof_version: str = ""
    rate_hz: int = 0
    event: str = "cpu-clock"
    mode: str = "both"
    min_block_us: int = 0
    free_threaded: tuple[int, ...] = ()  # pids of processes whose CPython is built so
    async_rate_hz: int = 0
    # Of processes that had not ended: (minor page faults, major ones, nanoseconds of its own code, and in the kernel).
    usage: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    # pid -> how often the memory of its control group was at a limit.
    limit_hits: dict[int, int] = field(default_factory=dict)
    # Places of the objects, from 1 on, that are clients of the process that is connected to them.
    accepted: frozenset[int] = frozenset()
    asks: frozenset[int] = frozenset()  # pids of processes that send about as often as they receive
    reader_pids: frozenset[int] = frozenset()  # of those that read what bpfprof prints, and what these print
    own_pids: frozenset[int] = frozenset()  # of bpfprof's own processes
    above_pids: frozenset[int] = frozenset()  # of those that started it: their parents, and on
    listens: dict[int, bool] = field(default_factory=dict)  # pid -> whether it has a socket that listens, where known
    cpu_limits: dict[int, float] = field(default_factory=dict)  # pid -> CPUs that it may use at a time, where known
    cpu_throttles: dict[int, CpuThrottle] = field(default_factory=dict)  # pid -> the limit that stopped it most
    connections: dict[int, tuple[Connection, ...]] = field(default_factory=dict)  # pid -> those of a rank
    in_other_network: frozenset[int] = frozenset()  # pids of ranks whose network namespace is another than bpfprof's
    unread: dict[str, tuple[str, ...]] = field(default_factory=dict)  # why not -> processes that run Python unread
    # Path of each file whose calls were counted, to how many of its functions were; None: they were not to be.
    call_libraries: dict[str, int] | None = None
    # What is known where a program has itself recorded for what one of its threads does, like a test.
    least_ns: int = 1_000_000_000  # of less time no verdict is given
    is_part: bool = False  # of a recording of which there is more
    at_work: frozenset[int] = frozenset()  # places of threads that never wait for work: it is theirs


@dataclass(frozen=True)
class LastWait:
    """What a thread, a place in Profile.threads, waited for when the recording ended: as WaitsFor of model.now.

    holder: place of the thread that has it, -1: none of the profile. held_by: who has it, in words; waited_ns: for how
    long, 0: not known.
    """

    thread: int
    kind: str
    name: str
    holder: int
    held_by: str
    nobody: str
    waited_ns: int
    has_end: bool = False


@dataclass(frozen=True)
class Concurrency:
    """How many threads ran at a time. rows: CONCURRENCY_DTYPE, by their number; either column sums to the time from the
    first moment of any thread to the last of any. spread_ns: of short waits and of what others took of a thread's CPU,
    whose moments are not known: they are laid evenly over the time that they were in. alone_ns: for each thread for how
    long no other one was runnable when it was, None: not known.
    """

    rows: npt.NDArray[np.void]
    spread_ns: int
    alone_ns: npt.NDArray[np.int64] | None = None


@dataclass
class Interner:
    """Frames and stacks of a profile under construction, each once. The only place where they get their numbers."""

    frames: list[Frame] = field(default_factory=list)
    stacks: list[tuple[int, ...]] = field(default_factory=list)
    _frame_numbers: dict[Frame, int] = field(default_factory=dict)
    _numbers_by_id: dict[int, int] = field(default_factory=dict)  # of the very objects that were met, which are kept
    _met: list[Frame] = field(default_factory=list)
    _stack_numbers: dict[tuple[int, ...], int] = field(default_factory=dict)

    @classmethod
    def of(cls, profile: Profile) -> Interner:
        """Goes on where a profile ends."""
        interner = cls()
        for frame in profile.frames:
            interner.frame(frame)
        for stack in profile.stacks:
            interner.of_numbers(stack)
        return interner

    @property
    def held_count(self) -> int:
        """Of stacks, and of frames that were met as objects of their own: these are held."""
        return len(self.stacks) + len(self._met)

    def frame(self, frame: Frame) -> int:
        """The number of a frame."""
        met = self._numbers_by_id.get(id(frame))  # what is dear is the hash of a frame
        if met is not None:
            return met
        number = self._frame_numbers.setdefault(frame, len(self.frames))
        if number == len(self.frames):
            self.frames.append(frame)
        self._met.append(frame)
        self._numbers_by_id[id(frame)] = number
        return number

    def stack(self, frames: Sequence[Frame]) -> int:
        """The number of a stack, root first."""
        known = tuple(map(self._numbers_by_id.get, map(id, frames)))
        return self.of_numbers(tuple(map(self.frame, frames)) if None in known else cast("tuple[int, ...]", known))

    def of_numbers(self, stack: tuple[int, ...]) -> int:
        """The number of a stack of numbered frames."""
        number = self._stack_numbers.setdefault(stack, len(self.stacks))
        if number == len(self.stacks):
            self.stacks.append(stack)
        return number


@dataclass(frozen=True)
class Profile:
    """Threads, frames, stacks and weights, each referring to the one before by index.

    `stacks` are root first and already carry their marks: a TRUNCATED frame first where the root is missing; a WAIT or
    RUNQUEUE frame last for OFF_CPU and RUNQUEUE weights. The process and thread are not frames: see `threads`.
    `weights` has WEIGHT_DTYPE, and of waits without a stack the marks [short waits] or [not sampled] + leaf mark.
    `spans` has SPAN_DTYPE with the profile's stacks (`stack` a place in `stacks`, waker_stack and holder_stack + 1),
    sorted by (thread, start_ns), or is None when it was not asked for: all of them, those that the profile does not
    show with SpanFlag.HIDDEN. `wakers`: what its column `waker` refers to. `gil_waits` has
    GIL_ROW_DTYPE, sorted by thread: for each thread the rows sum to its time with the reason "gil".
    `filter_text`: what was asked to be shown, "" for all. `task_spans` has TASK_SPAN_DTYPE, sorted by (task, start_ns).
    `event_weights` has EVENT_WEIGHT_DTYPE, whose events are those of `events`; they are no part of the time.
    `objects`: what the column `object` of spans refers to, from 1 on. `lock_holders` has LOCK_HOLDER_DTYPE, with times
    since the recording began, and of threads of the profile, by thread and time. `marks` has PROFILE_MARK_DTYPE, by
    thread and time, those that began and ended in the window. `samples`, if asked for, PROFILE_SAMPLE_DTYPE, as these.
    Where the order of spans was not asked for those that nothing but their time tells apart are one, which begins where
    the first of them does. `wait_times` has WAIT_TIME_DTYPE then, by thread and time; else it is None. `span_holders`
    has SPAN_HOLDER_DTYPE then, where they were asked for: `holder` and `holder_stack` of spans say nothing.
    `last_waits`: of threads that waited when the recording ended, one of each at most; none of a window before that.
    `calls` has PROFILE_CALL_DTYPE: of the whole recording, but of threads that are shown.
    `pieces` has PIECE_DTYPE, by thread and time, if they were asked for: `single_spans()` makes single spans of them.
    Of one span those that begin in the same `pieces_ns`, if that is not 0, may be one.
    `concurrency` is of the threads that are shown, if it was asked for and all time of theirs is shown; who was alone
    is not known where threads were chosen by name. `is_of_window`: of a part of the time, which `calls` are not.
    """

    info: RecordingInfo
    threads: tuple[ThreadTime, ...]
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]
    weights: npt.NDArray[np.void]
    quality: Quality
    spans: npt.NDArray[np.void] | None = None
    wakers: tuple[Waker, ...] = ()
    gil_waits: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, GIL_ROW_DTYPE))
    filter_text: str = ""
    tasks: tuple[Task, ...] = ()
    task_spans: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, TASK_SPAN_DTYPE))
    events: tuple[str, ...] = ()
    event_weights: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, EVENT_WEIGHT_DTYPE))
    objects: tuple[str, ...] = ()
    lock_holders: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, LOCK_HOLDER_DTYPE))
    marks: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, PROFILE_MARK_DTYPE))
    mark_names: tuple[str, ...] = ()
    samples: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, PROFILE_SAMPLE_DTYPE))
    wait_times: npt.NDArray[np.void] | None = None
    span_holders: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, SPAN_HOLDER_DTYPE))
    pieces: npt.NDArray[np.void] | None = None
    concurrency: Concurrency | None = None
    last_waits: tuple[LastWait, ...] = ()
    calls: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, PROFILE_CALL_DTYPE))
    call_names: tuple[str, ...] = ()
    is_of_window: bool = False
    pieces_ns: int = 0
