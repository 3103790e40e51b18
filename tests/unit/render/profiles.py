"""Small profiles made by hand: threads, and what each of them did in the order of time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.profile import (
    GIL_ROW_DTYPE,
    HOLDER_ROW_DTYPE,
    TIMELINE_DTYPE,
    WAIT_ROW_DTYPE,
    WEIGHT_DTYPE,
    Profile,
    Quality,
    RecordingInfo,
    ThreadState,
    ThreadTime,
    WaitTable,
    Waker,
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
    waits: list[dict[str, Any]] = field(default_factory=list)
    wakers: list[Waker] = field(default_factory=list)
    gil: list[tuple[int, int, int, int]] = field(default_factory=list)
    holders: list[tuple[int, int, int, int]] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    off_by_reason: defaultdict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))

    def thread(self, tid: int, name: str = "python", pid: int = 100, process: str = "python", first_ns: int = 0) -> int:
        """A new thread; returns its index."""
        self.threads.append(ThreadTime(Pid(pid), Tid(tid), process, name, first_ns, first_ns, 0, 0, 0, 0, 0))
        return len(self.threads) - 1

    def spend(self, thread: int, state: ThreadState, ns: int, stack: Sequence[Frame]) -> None:
        """The thread's next interval; one sample if it is on the CPU."""
        stack_id = self.stack(stack)
        if state == OFF_CPU and stack and stack[-1].kind == FrameKind.WAIT:
            self.off_by_reason[thread, stack[-1].name] += ns
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

    def stack(self, stack: Sequence[Frame]) -> int:
        """Place of a stack."""
        ids = tuple([self.frames.setdefault(frame, len(self.frames)) for frame in stack])
        return self.stacks.setdefault(ids, len(self.stacks))

    def waker(self, kind: str = "thread", **values: Any) -> int:
        """The number by which waits refer to it."""
        self.wakers.append(Waker(kind, **values))
        return len(self.wakers)

    def thread_waker(self, thread: int) -> int:
        """A waker that is one of the threads."""
        who = self.threads[thread]
        names = {"process_name": who.process_name, "thread_name": who.thread_name}
        return self.waker(pid=who.pid, tid=who.tid, thread=thread, **names)

    def wait(
        self,
        thread: int,
        ns: int,
        stack: Sequence[Frame],
        ready: int = 0,
        waker_stack: Sequence[Frame] | None = None,
        before: int = 0,
        **values: Any,
    ) -> int:
        """The thread's next interval is a wait with a row of its own; `before` is the waker's wait before.

        Returns the number by which others refer to it. `values` are columns of WAIT_ROW_DTYPE.
        """
        start_ns = self.threads[thread].last_ns
        self.spend(thread, OFF_CPU, ns, stack)
        if ready:
            self.spend(thread, RUNQUEUE, ready, [*stack[:-1], READY])
        self.waits.append(
            {
                **{"start_ns": start_ns, "blocked_ns": ns, "runqueue_ns": ready, "thread": thread, "intervals": 1},
                **{"stack": self.stack(stack), "task_state": 1, "total_ns": ns, "count": 1},
                "waker_stack": 0 if waker_stack is None else self.stack(waker_stack) + 1,
                "waker_wait": before,
                "reason": self.reasons.setdefault(stack[-1].name, len(self.reasons)),
                **values,
            }
        )
        return len(self.waits)

    def behind(
        self, thread: int, ns: int, holder: int = -1, stack: Sequence[Frame] | None = None, wait: int = 0
    ) -> None:
        """Of the waits for a GIL of a thread, or of the one with this number: what a holder had to do with it."""
        place = 0 if stack is None else self.stack(stack) + 1
        self.gil.append((thread, holder, place, ns))
        if wait:
            self.holders.append((wait, holder, place, ns))

    def _wait_table(self) -> WaitTable | None:
        if not self.waits and not self.gil:
            return None
        rows = np.zeros(len(self.waits), WAIT_ROW_DTYPE)
        for index, values in enumerate(self.waits):
            for name, value in values.items():
                rows[name][index] = value
        order = np.lexsort((rows["start_ns"], rows["thread"]))
        new_place = np.zeros(len(rows) + 1, np.uint32)
        new_place[order + 1] = np.arange(1, len(rows) + 1)
        rows["waker_wait"] = new_place[rows["waker_wait"]]
        holders = np.array(self.holders, HOLDER_ROW_DTYPE)
        holders["wait"] = new_place[holders["wait"]] - 1
        return WaitTable(rows[order], tuple(self.reasons), tuple(self.wakers), np.sort(holders, order="wait"))

    def _threads(self) -> tuple[ThreadTime, ...]:
        made = []
        for index, who in enumerate(self.threads):
            reasons = [(reason, ns) for (thread, reason), ns in self.off_by_reason.items() if thread == index]
            made.append(replace(who, off_by_reason=tuple(sorted(reasons, key=lambda item: -item[1]))))
        return tuple(made)

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
            threads=self._threads(),
            frames=tuple(self.frames),
            stacks=tuple(self.stacks),
            weights=np.array([(*key, *row) for key, row in weights.items()], dtype=WEIGHT_DTYPE),
            quality=self.quality,
            timeline=np.array(ordered, dtype=TIMELINE_DTYPE) if timeline else None,
            waits=self._wait_table(),
            gil_waits=np.array(self.gil, GIL_ROW_DTYPE),
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


def waiting_profile() -> Profile:
    """A consumer that a producer wakes, which a timer wakes; two threads and one GIL; an idle pool; short waits."""
    made = ProfileBuilder(info=replace(INFO, mode="offcpu", min_block_us=100))
    made.quality = Quality(300, 0, {}, {}, 24 * MS, 2_000 * MS, short_count=12_345, unsampled_count=7)
    made.quality = replace(made.quality, short_ns=60 * MS)
    base = [python("<module>", line=90)]
    get = [*base, python("consume", line=30), python("Queue.get", "/usr/lib/python3.11/queue.py", 171)]
    put = [*base, python("produce", line=50), python("Queue.put", "/usr/lib/python3.11/queue.py", 130)]
    hog = [*base, python("hog_gil", "/srv/app/oracle.py", 12)]
    main, producer, spinner = made.thread(100, "MainThread"), made.thread(101, "producer"), made.thread(102, "hog")
    pool = made.thread(103, "pool")
    by_producer, by_hog = made.thread_waker(producer), made.thread_waker(spinner)
    timer = made.waker("timer")
    other = made.waker(pid=7, tid=8, process_name="systemd", thread_name="sd-bus")
    futex = [native("pthread_cond_wait"), kernel("futex_wait")]
    for turn in range(40):
        slept = made.wait(
            producer, (20 + turn) * MS, [*base, python("produce", line=48), native("sleep"), wait("sleep")], waker=timer
        )
        lock = {"lock": 0x7F0012AB34C0, "ready": 20_000 * (turn + 1)}
        if turn % 10:
            lock |= {"waker": by_producer, "waker_stack": [*put, native("sem_post")], "before": slept}
        else:
            lock |= {"waker": other}
        made.wait(main, (19 + turn) * MS, [*get, *futex, wait("lock")], **lock)
        gil = made.wait(
            main, 100_000 << (turn % 6), [*get, *futex, wait("gil")], lock=0x5500, waker=by_hog, waker_stack=hog
        )
        made.spend(spinner, ON_CPU, 5 * MS, hog)
    made.wait(spinner, 1_500 * MS, [native("read"), wait("disk")], task_state=2, waker=made.waker("interrupt"))
    made.behind(main, 55 * MS, spinner, hog, gil)
    made.behind(main, 3 * MS, producer, put, gil)
    made.behind(main, 1 * MS, wait=gil)
    made.wait(pool, 1_900 * MS, [native("worker_main"), *futex, wait("lock")], is_idle=True, lock=0x5600)
    short = Frame(FrameKind.SHORT_WAITS)
    made.spend(pool, OFF_CPU, 60 * MS, [short, wait("lock")])
    made.spend(pool, RUNQUEUE, 2 * MS, [short, READY])
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
    waker = made.waker(pid=9, tid=9, process_name=evil, thread_name=evil)
    first = made.wait(thread, 5 * MS, [*stack, wait(evil)], waker=made.waker(evil), lock=5, is_idle=True)
    gil = made.wait(thread, 6 * MS, [*stack, wait("gil")], waker=waker, waker_stack=stack, before=first, lock=5)
    made.behind(thread, 6 * MS, thread, stack, gil)
    return made.build()


def deep_profile(depth: int = 2_000) -> Profile:
    """One recursion that never repeats a line."""
    made = ProfileBuilder()
    thread = made.thread(100)
    made.spend(thread, ON_CPU, 7 * MS, [python("down", line=line + 1) for line in range(depth)])
    return made.build()
