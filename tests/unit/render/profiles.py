"""Small profiles made by hand: threads, and what each of them did in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.profile import (
    GIL_ROW_DTYPE,
    PROFILE_SAMPLE_DTYPE,
    Interner,
    Profile,
    Quality,
    RecordingInfo,
    ThreadTime,
    Waker,
)
from bpfprof.model.spans import SPAN_DTYPE, How, SpanFlag, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.model.statuses import Status
from bpfprof.profile.weights import gil_waits_of, weights_of
from bpfprof.render.collapsed import render_collapsed
from bpfprof.render.formats import RenderOptions

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
Behind = tuple[int, int, "Sequence[Frame] | None"]  # part of a wait for the GIL, who held it (-1: not known), its stack


@dataclass
class ProfileBuilder:
    """Collects spans; a thread's times and the weights follow from them."""

    info: RecordingInfo = INFO
    quality: Quality = field(default_factory=Quality)
    threads: list[ThreadTime] = field(default_factory=list)
    interner: Interner = field(default_factory=Interner)
    spans: list[dict[str, Any]] = field(default_factory=list)
    wakers: list[Waker] = field(default_factory=list)
    wait_count: int = 0

    def thread(self, tid: int, name: str = "python", pid: int = 100, process: str = "python", first_ns: int = 0) -> int:
        """A new thread; returns its index."""
        self.threads.append(ThreadTime(Pid(pid), Tid(tid), process, name, first_ns, first_ns, 0, 0, 0, 0, 0))
        return len(self.threads) - 1

    def spend(self, thread: int, state: ThreadState, ns: int, stack: Sequence[Frame], **values: Any) -> None:
        """The thread's next span; one sample if it is on the CPU, a wait of its own if off it.

        `values` are columns of SPAN_DTYPE.
        """
        self.wait_count += state == OFF_CPU
        reason = stack[-1].name if state == OFF_CPU and stack[-1].kind == FrameKind.WAIT else ""
        who = self.threads[thread]
        span = {"thread": thread, "state": state, "start_ns": who.last_ns, "duration_ns": ns, "stands_for_ns": ns}
        span |= {"stack": self.interner.stack(stack), "reason": _number(reason), "count": 1}
        span |= {"wait": self.wait_count * (state != ON_CPU), "task_state": state == OFF_CPU}
        if stack and stack[0].kind == FrameKind.SHORT_WAITS:
            span |= {"wait": 0, "how": How.SUMMED, "status": Status.SHORT_WAIT}
        self.spans.append({**span, **values})
        reasons = dict(who.off_by_reason)
        if reason:
            reasons[reason] = reasons.get(reason, 0) + ns
        self.threads[thread] = replace(
            who,
            last_ns=who.last_ns + ns,
            on_cpu_ns=who.on_cpu_ns + ns * (state == ON_CPU),
            runqueue_ns=who.runqueue_ns + ns * (state == RUNQUEUE),
            off_cpu_ns=who.off_cpu_ns + ns * (state == OFF_CPU),
            sample_count=who.sample_count + (state == ON_CPU),
            wait_count=who.wait_count + (state == OFF_CPU),
            off_by_reason=tuple(sorted(reasons.items(), key=lambda item: -item[1])),
        )

    def stack(self, stack: Sequence[Frame]) -> int:
        """Place of a stack."""
        return self.interner.stack(stack)

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
        behind: Sequence[Behind] = (),
        **values: Any,
    ) -> None:
        """The thread's next wait; `behind`: those it waited for the GIL behind, in the order of time."""
        values["waker_stack"] = 0 if waker_stack is None else self.stack(waker_stack) + 1
        self.spend(thread, OFF_CPU, ns, stack, **values)
        if behind:
            whole, begin_ns = self.spans.pop(), self.threads[thread].last_ns - ns
            ends = np.cumsum([it[0] for it in behind])
            parts_ns = np.diff(np.rint(ends * (ns / ends[-1])), prepend=0).astype(np.int64)
            for part_ns, (_, holder, at) in zip(parts_ns, behind):
                held = {"holder": holder + 1, "holder_stack": 0 if at is None else self.stack(at) + 1}
                times = {"start_ns": begin_ns, "duration_ns": part_ns, "stands_for_ns": part_ns}
                self.spans.append({**whole, **held, **times, "count": begin_ns == whole["start_ns"]})
                begin_ns += part_ns
        if ready:
            self.spend(thread, RUNQUEUE, ready, [*stack[:-1], READY])

    def build(self, spans: bool = True) -> Profile:
        """The profile; without spans as it is for a format that needs none."""
        made = np.zeros(len(self.spans), SPAN_DTYPE)
        for index, values in enumerate(self.spans):
            for name, value in values.items():
                made[name][index] = value
        made = made[np.lexsort((made["start_ns"], made["thread"]))]
        return Profile(
            info=self.info,
            threads=tuple(self.threads),
            frames=tuple(self.interner.frames),
            stacks=tuple(self.interner.stacks),
            weights=weights_of(made, made["stack"]),
            quality=self.quality,
            spans=made if spans else None,
            wakers=tuple(self.wakers),
            gil_waits=gil_waits_of(made[made["holder"] > 0]),
            samples=_samples(made),
        )


def _samples(spans: np.ndarray) -> np.ndarray:
    """One in the middle of each span on a CPU that has one."""
    of_cpu = spans[(spans["state"] == ON_CPU) & (spans["count"] > 0)]
    found = np.zeros(len(of_cpu), PROFILE_SAMPLE_DTYPE)
    found["time_ns"] = of_cpu["start_ns"] + of_cpu["duration_ns"] // 2
    found["thread"], found["stack"] = of_cpu["thread"], of_cpu["stack"]
    return found


def _number(reason: str) -> int:
    try:
        return reason_number(reason)
    except ValueError:
        return reason_number("unknown")


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
    nap = [*base, python("produce", line=48), native("sleep"), wait("sleep")]
    behind = (55, spinner, hog), (3, producer, put), (1, -1, None)
    for turn in range(40):
        made.wait(producer, (20 + turn) * MS, nap, waker=timer)
        by: dict[str, Any] = {"waker": by_producer, "waker_stack": [*put, native("sem_post")]}
        lock = {"lock": 0x7F0012AB34C0, "ready": 20_000 * (turn + 1), **(by if turn % 10 else {"waker": other})}
        made.wait(main, (19 + turn) * MS, [*get, *futex, wait("lock")], **lock)
        by = {"waker": by_hog, "waker_stack": hog}
        made.wait(main, 100_000 << (turn % 6), [*get, *futex, wait("gil")], lock=0x5500, behind=behind, **by)
        made.spend(spinner, ON_CPU, 5 * MS, hog)
    made.wait(spinner, 1_500 * MS, [native("read"), wait("disk")], task_state=2, waker=made.waker("interrupt"))
    made.wait(pool, 1_900 * MS, [native("worker_main"), *futex, wait("lock")], flags=SpanFlag.IDLE, lock=0x5600)
    short = Frame(FrameKind.SHORT_WAITS)
    made.spend(pool, OFF_CPU, 60 * MS, [short, wait("lock")])
    made.spend(pool, RUNQUEUE, 2 * MS, [short, READY])
    gil = [(main, spinner, made.stack(hog) + 1, 55 * MS), (main, producer, made.stack(put) + 1, 3 * MS)]
    return replace(made.build(), gil_waits=np.array([*gil, (main, -1, 0, MS)], GIL_ROW_DTYPE))


def locks_profile() -> Profile:
    """Two threads wait for each other's lock, each of which is taken in a function of its own."""
    made = ProfileBuilder()
    threads = [made.thread(100 + number, f"worker {number}") for number in range(2)]
    wakers = [made.thread_waker(thread) for thread in threads]
    for turn in range(10):
        for number, thread in enumerate(threads):
            stack = [python("<module>", line=90), python(("audit", "flush")[number], "/srv/app/views.py", 20 + number)]
            by = {
                "waker": wakers[1 - number],
                "waker_stack": stack[:1],
                "lock": 0x5000 + 64 * number,
            }
            made.wait(thread, (60 + turn - 20 * number) * MS, [*stack, native("futex_wait"), wait("lock")], **by)
            made.spend(thread, ON_CPU, 5 * MS, [*stack, native("futex_wait")])
    return made.build()


def hostile_profile() -> Profile:
    """Every name tries to break out of its format."""
    evil = "</script></style>]]><script>alert(1)</script><img src=x onerror=alert(2)>"
    evil += "\"'&<b>;\n\r\t\x00\x1b[31m\u2028\u202e\udc80\ufffe"
    made = ProfileBuilder(info=replace(INFO, command_line=("python", evil), host_name=evil, kernel_release=evil))
    made.quality = Quality(1, 0, {evil: 1}, {evil: 1}, 0, 10, unfinished=evil)
    thread = made.thread(7, evil, 7, evil)
    kinds = [FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.INLINED, FrameKind.KERNEL]
    stack = [Frame(kind, evil, f"/tmp/{evil}", 3) for kind in kinds]
    made.spend(thread, ON_CPU, 5 * MS, [Frame(FrameKind.TRUNCATED, evil), *stack])
    made.spend(thread, OFF_CPU, 5 * MS, [*stack, wait(evil)])
    made.spend(thread, RUNQUEUE, 5 * MS, [*stack, READY])
    waker = made.waker(pid=9, tid=9, process_name=evil, thread_name=evil)
    made.wait(thread, 5 * MS, [*stack, wait(evil)], waker=made.waker(evil), lock=5, flags=SpanFlag.IDLE)
    behind = [(6 * MS, thread, stack)]
    made.wait(thread, 6 * MS, [*stack, wait("gil")], waker=waker, waker_stack=stack, lock=5, behind=behind)
    return made.build()


def deep_profile(depth: int = 2_000) -> Profile:
    """One recursion that never repeats a line."""
    made = ProfileBuilder()
    thread = made.thread(100)
    made.spend(thread, ON_CPU, 7 * MS, [python("down", line=line + 1) for line in range(depth)])
    return made.build()


def collapsed_text(profile: Profile, options: RenderOptions) -> str:
    return render_collapsed(profile, options).decode()
