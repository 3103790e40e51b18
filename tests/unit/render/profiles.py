"""Small profiles made by hand: threads, and what each of them did in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.profile import (
    TIMELINE_DTYPE,
    WEIGHT_DTYPE,
    Profile,
    Quality,
    RecordingInfo,
    ThreadState,
    ThreadTime,
)

ON_CPU, RUNQUEUE, OFF_CPU = ThreadState.ON_CPU, ThreadState.RUNQUEUE, ThreadState.OFF_CPU
MS = 1_000_000
INFO = RecordingInfo(
    command_line=("python", "train.py", "--epochs", "3"),
    started_unix_ns=1_700_000_000_000_000_000,
    duration_ns=2_000 * MS,
    host_name="node-7",
    kernel_release="6.1.0",
    bpfprof_version="0.1.0",
    rate_hz=99,
)


def python(name: str, file: str = "/srv/app/train.py", line: int = 0) -> Frame:
    return Frame(FrameKind.PYTHON, name, file, line)


def native(name: str, file: str = "/usr/lib/libc.so.6", offset: int = 0) -> Frame:
    return Frame(FrameKind.NATIVE, name, file, offset=offset)


def kernel(name: str) -> Frame:
    return Frame(FrameKind.KERNEL, name)


def wait(reason: str) -> Frame:
    return Frame(FrameKind.WAIT, reason)


READY = Frame(FrameKind.RUNQUEUE)


@dataclass
class ProfileBuilder:
    """Collects intervals; a thread's times, the weights and the timeline follow from them."""

    info: RecordingInfo = INFO
    quality: Quality = field(default_factory=Quality)
    threads: list[ThreadTime] = field(default_factory=list)
    frames: dict[Frame, int] = field(default_factory=dict)
    stacks: dict[tuple[int, ...], int] = field(default_factory=dict)
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def thread(self, tid: int, name: str = "python", pid: int = 100, process: str = "python", first_ns: int = 0) -> int:
        """A new thread; returns its index."""
        self.threads.append(ThreadTime(Pid(pid), Tid(tid), process, name, first_ns, first_ns, 0, 0, 0, 0, 0))
        return len(self.threads) - 1

    def spend(self, thread: int, state: ThreadState, ns: int, stack: Sequence[Frame]) -> None:
        """The thread's next interval; one sample if it is on the CPU."""
        ids = tuple([self.frames.setdefault(frame, len(self.frames)) for frame in stack])
        stack_id = self.stacks.setdefault(ids, len(self.stacks))
        who = self.threads[thread]
        self.rows.append((thread, stack_id, state, who.last_ns, ns))
        self.threads[thread] = replace(
            who,
            last_ns=who.last_ns + ns,
            on_cpu_ns=who.on_cpu_ns + ns * (state == ON_CPU),
            runqueue_ns=who.runqueue_ns + ns * (state == RUNQUEUE),
            off_cpu_ns=who.off_cpu_ns + ns * (state == OFF_CPU),
            sample_count=who.sample_count + (state == ON_CPU),
            wait_count=who.wait_count + (state == OFF_CPU),
        )

    def build(self, timeline: bool = True) -> Profile:
        """The profile; with `timeline` False, as it is for a format that needs none."""
        weights: dict[tuple[int, int, int], list[int]] = {}
        for thread, stack, state, _, ns in self.rows:
            row = weights.setdefault((thread, stack, state), [0, 0, 0])
            row[0] += 1
            row[1] += ns
            row[2] = max(row[2], ns if state != ON_CPU else 0)
        ordered = sorted(self.rows, key=lambda row: (row[0], row[3]))
        return Profile(
            info=self.info,
            threads=tuple(self.threads),
            frames=tuple(self.frames),
            stacks=tuple(self.stacks),
            weights=np.array([(*key, *row) for key, row in weights.items()], dtype=WEIGHT_DTYPE),
            quality=self.quality,
            timeline=np.array(ordered, dtype=TIMELINE_DTYPE) if timeline else None,
        )


def empty_profile() -> Profile:
    """Nothing was seen."""
    return ProfileBuilder(info=RecordingInfo()).build()


def training_profile() -> Profile:
    """A main thread that computes and waits; a worker without Python that sits in an ioctl; an idle thread."""
    made = ProfileBuilder()
    made.quality = Quality(120, 12, {"no unwind row": 2, "too deep": 1}, {"ring buffer full": 4}, 24 * MS, 2_000 * MS)
    base = [python("<module>", line=90), python("Trainer.run", line=41)]
    step = [*base, python("Trainer.step", "/srv/app/model.py", 17)]
    numpy_stack = [
        *step,
        native("cblas_dgemm", "/usr/lib/libopenblas.so.0"),
        native("", "/usr/lib/libopenblas.so.0", 0x1F40),
    ]
    futex = [native("pthread_cond_wait"), kernel("entry_SYSCALL_64"), kernel("futex_wait")]
    take = [*base, python("Queue.get", "/usr/lib/python3.11/queue.py", 171), *futex]
    main = made.thread(100, "MainThread")
    worker = made.thread(101, "io worker")
    pool = made.thread(102, "pool", first_ns=250 * MS)
    for _ in range(10):
        made.spend(main, ON_CPU, 20 * MS + 333, numpy_stack)
        made.spend(main, ON_CPU, 10 * MS, [*step, Frame(FrameKind.INLINED, "dot<float>", "/srv/app/_kernels.so")])
        made.spend(main, RUNQUEUE, 1 * MS, [*step, READY])
        made.spend(main, OFF_CPU, 160 * MS, [*take, wait("lock")])
        made.spend(main, OFF_CPU, 9 * MS - 333, [*step, wait("gil")])
        ioctl = [native("Worker::poll()", "/srv/app/libdriver.so"), native("ioctl"), kernel("do_vfs_ioctl")]
        made.spend(worker, OFF_CPU, 195 * MS, [*ioctl, wait("syscall ioctl")])
        made.spend(worker, ON_CPU, 5 * MS, ioctl)
    made.spend(pool, OFF_CPU, 1_749 * MS, [Frame(FrameKind.TRUNCATED, "no unwind row"), *futex, wait("lock")])
    made.spend(pool, ON_CPU, 1 * MS, [Frame(FrameKind.NOT_SAMPLED)])
    return made.build()


def hostile_profile() -> Profile:
    """Every name tries to break out of its format."""
    evil = "</script></style>]]><script>alert(1)</script>\"'&<b>;\n\r\t\x00\x1b[31m\u2028\u202e\udc80\ufffe"
    made = ProfileBuilder(info=replace(INFO, command_line=("python", evil), host_name=evil, kernel_release=evil))
    made.quality = Quality(1, 0, {evil: 1}, {evil: 1}, 0, 10, unfinished=evil)
    thread = made.thread(7, evil, 7, evil)
    kinds = [FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.INLINED, FrameKind.KERNEL]
    stack = [Frame(kind, evil, f"/tmp/{evil}", 3) for kind in kinds]
    made.spend(thread, ON_CPU, 5 * MS, [Frame(FrameKind.TRUNCATED, evil), *stack])
    made.spend(thread, OFF_CPU, 5 * MS, [*stack, wait(evil)])
    made.spend(thread, RUNQUEUE, 5 * MS, [*stack, READY])
    return made.build()


def deep_profile(depth: int = 2_000) -> Profile:
    """One recursion that never repeats a line."""
    made = ProfileBuilder()
    thread = made.thread(100)
    made.spend(thread, ON_CPU, 7 * MS, [python("down", line=line + 1) for line in range(depth)])
    return made.build()
