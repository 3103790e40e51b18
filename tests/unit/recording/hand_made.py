"""Recordings made by hand: tables row by row, or threads that tell what they did as the kernel side would report it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bpfprof.capture.numbers import status_texts
from bpfprof.model.samples import (
    CALL_DTYPE,
    EVENT_DTYPE,
    HOLDS_GIL,
    LOCK_HOLDER_DTYPE,
    MARK_DTYPE,
    NAME_DTYPE,
    NAME_EVAL,
    NAME_INLINED,
    NATIVE_DTYPE,
    NATIVE_EXACT,
    NATIVE_INDEX_DTYPE,
    NO_FILE,
    PYTHON_FRAME_DTYPE,
    SAMPLE_DTYPE,
    SHORT_DTYPE,
    STACK_DTYPE,
    TASK_WAIT_DTYPE,
    TOTAL_DTYPE,
    UNSAMPLED,
    WAIT_DTYPE,
    WAITS_FOR_GIL,
)
from bpfprof.model.statuses import LastState, Status
from bpfprof.recording.contents import Recording
from bpfprof.recording.format import MAGIC, Chunk, encode
from bpfprof.recording.reader import read_recording
from bpfprof.recording.tables import RecordedLastWait, table_row

START_NS = 5_000_000_000
MS = 1_000_000
UNKNOWN, ON_CPU, RUNNABLE, BLOCKED, DEAD = (int(state) for state in LastState)
NANOSLEEP, FUTEX, IOCTL = 35, 202, 16
FOR_CONDITION, FOR_MUTEX = 393, 128  # FUTEX_WAIT_BITSET and FUTEX_WAIT with their options, include/uapi/linux/futex.h
NOT_TAKEN = int(Status.STACK_NOT_TAKEN)
Name = tuple[str, str, int, int]  # function, file, line, flags of NAME_DTYPE


def row(dtype: np.dtype[np.void], **values: Any) -> np.void:
    """One element of `dtype`; what is not given is 0."""
    made = np.zeros(1, dtype)
    for name, value in values.items():
        made[name] = value
    first: np.void = made[0]
    return first


@dataclass
class HandMade:
    """A recording under construction. Times are absolute; the recording begins at START_NS."""

    start: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    processes: list[dict[str, Any]] = field(default_factory=list)
    threads: list[dict[str, Any]] = field(default_factory=list)
    codes: list[list[Any]] = field(default_factory=list)
    linetables: list[bytes] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)
    natives: list[np.void] = field(default_factory=list)
    names: list[np.void] = field(default_factory=list)
    texts: list[str] = field(default_factory=lambda: [""])
    stacks: list[np.void] = field(default_factory=list)
    python: list[np.void] = field(default_factory=list)
    native_frames: list[np.void] = field(default_factory=list)
    samples: list[np.void] = field(default_factory=list)
    waits: list[np.void] = field(default_factory=list)
    totals: list[np.void] = field(default_factory=list)
    wakers: list[dict[str, Any]] = field(default_factory=list)
    objects: list[dict[str, Any]] = field(default_factory=list)
    short_waits: list[np.void] = field(default_factory=list)
    marks: list[np.void] = field(default_factory=list)
    calls: list[np.void] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    task_waits: list[np.void] = field(default_factory=list)
    events: list[np.void] = field(default_factory=list)
    lock_holders: list[np.void] = field(default_factory=list)
    last_waits: list[dict[str, Any]] = field(default_factory=list)

    def process(self, pid: int = 100, **values: Any) -> int:
        """A process that runs CPython 3.11 unless told otherwise; returns its index."""
        known: dict[str, Any] = {"name": "python", "command_line": ["python", "a.py"]}
        known |= {"interpreter": "cpython", "version": "3.11.2", "build": ""}
        known |= {"entry_marks_from": 1, "shim_is_python": True, "gil": None, "note": ""}
        self.processes.append({"index": len(self.processes), "pid": pid, **known, **values})
        return len(self.processes) - 1

    def thread(self, tid: int = 100, process: int = 0, first_ns: int = START_NS, name: str = "main") -> int:
        """Returns the thread's index."""
        index = len(self.threads)
        self.threads.append({"index": index, "process": process, "tid": tid, "first_ns": first_ns, "name": name})
        return index

    def waker(self, thread: int = -1, pid: int = 0, tid: int = 0, name: str = "") -> int:
        """A thread that ends waits: one of the recording's by its index, or another; returns the number of its row."""
        values = {"thread": thread + 1, "pid": pid, "tid": tid, "process_name": name and "daemon", "name": name}
        self.wakers.append({"index": len(self.wakers), **values})
        return len(self.wakers)

    def short(self, thread: int, blocked: int, ready: int = 0, count: int = 1, **wait: Any) -> None:
        """Waits that were only added up."""
        values = {"syscall": FUTEX, "task_state": 1, **wait}
        sums = {"thread": thread, "blocked_ns": blocked, "runqueue_ns": ready, "count": count}
        self.short_waits.append(row(SHORT_DTYPE, **sums, **values))

    def code(
        self,
        qualname: str,
        process: int = 0,
        reason: str = "",
        linetable: bytes = b"",
        first_line: int = 1,
        filename: str = "/srv/a.py",
    ) -> int:
        """Returns the number by which frames refer to it."""
        self.codes.append([process, "" if reason else filename, qualname, first_line, reason])
        self.linetables.append(linetable)
        return len(self.codes)

    def file(self, path: str, kind: str = "elf", **values: Any) -> int:
        """A file that code is mapped from; returns its index."""
        self.files.append({"index": len(self.files), "kind": kind, "path": path, "build_id": "", "note": "", **values})
        return len(self.files) - 1

    def native(self, file: int, *names: Name, address: int = 0x1000, flags: int = 0) -> int:
        """An address with its names, innermost first; returns the number by which stacks refer to it."""
        self.natives.append(row(NATIVE_DTYPE, address=address, file=file, flags=flags))
        for function, source, line, name_flags in names:
            values = {"function": self._text(function), "file": self._text(source), "line": line, "flags": name_flags}
            self.names.append(row(NAME_DTYPE, native=len(self.natives), **values))
        return len(self.natives)

    def mark(self, thread: int, time_ns: int, name: str, value: float) -> None:
        """What a program says of itself."""
        self.marks.append(row(MARK_DTYPE, time_ns=time_ns, thread=thread, name=self._text(name), value=value))

    def call(self, thread: int, function: str, count: int, total_ns: int, **values: Any) -> None:
        """So many calls of a library's function, all of one length."""
        each_ns, lengths = total_ns // count, np.zeros(64, np.uint32)
        power = max(8, each_ns.bit_length() - 1)
        lengths[2 * (power - 8) + (each_ns >> (power - 1) & 1)] = count
        known = {"time_ns": START_NS, "max_ns": each_ns, "lengths": lengths}
        text = self._text(function)
        made = {**known, "thread": thread, "function": text, "count": count, "total_ns": total_ns, **values}
        self.calls.append(row(CALL_DTYPE, **made))

    def task(self, name: str, process: int = 0) -> int:
        """A task of asyncio; returns its index."""
        self.tasks.append({"index": len(self.tasks), "process": process, "name": name})
        return len(self.tasks) - 1

    def task_wait(
        self, task: int, begin_ns: int, end_ns: int, stack: int, waits_for: str = "", callback: str = "", **values: int
    ) -> None:
        """A task that was seen to wait; other columns by their names."""
        texts = {"waits_for": self._text(waits_for), "callback": self._text(callback)}
        values = {"seen_ns": end_ns - begin_ns, "count": 1, **values}
        times = {"begin_ns": begin_ns, "end_ns": end_ns}
        self.task_waits.append(row(TASK_WAIT_DTYPE, task=task, stack=stack, **times, **texts, **values))

    def event(self, name: str, thread: int, time_ns: int, count: int, stack: int, **values: Any) -> None:
        """A sample that speaks for so many events."""
        names = self.start.setdefault("events", [])
        names += [name] if name not in names else []
        values |= {"event": names.index(name), "thread": thread, "count": count, "stack": stack}
        self.events.append(row(EVENT_DTYPE, time_ns=time_ns, **values))

    def lock_holder(self, thread: int, holder: int, time_ns: int) -> None:
        """It was seen who held what a thread waited for, both by their indices."""
        self.lock_holders.append(
            row(LOCK_HOLDER_DTYPE, time_ns=time_ns, end_ns=time_ns + 1000, thread=thread, holder=holder + 1)
        )

    def _text(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)

    def stack(
        self,
        *frames: tuple[int, int, int],
        process: int = 0,
        status: int = 0,
        native: Sequence[int] = (),
        kernel: Sequence[int] = (),
        native_status: int | None = None,
    ) -> int:
        """Of (code, offset, mark) and numbers of native and kernel frames, leaf first each.

        Without native frames they were not asked for, unless a status says otherwise. Returns the number by which
        samples and waits refer to it.
        """
        self.python += [row(PYTHON_FRAME_DTYPE, code=code, offset=offset, mark=mark) for code, offset, mark in frames]
        self.native_frames += [row(NATIVE_INDEX_DTYPE, native=number) for number in (*native, *kernel)]
        if native_status is None:
            native_status = 0 if native else NOT_TAKEN
        counts = {"python_count": len(frames), "native_count": len(native), "kernel_count": len(kernel)}
        self.stacks.append(row(STACK_DTYPE, process=process, status=status, native_status=native_status, **counts))
        return len(self.stacks)

    def chunks(self) -> list[Chunk]:
        """In the order bpfprof writes them."""
        start = {"start_ns": START_NS, "rate_hz": 100, "event": "cpu-clock", "mode": "both", "target_pids": [100]}
        start["native"] = True
        ends = np.cumsum([len(table) for table in self.linetables], dtype=np.uint64)
        tables: dict[str, Any] = {
            "linetable_ends": ends,
            "linetables": np.frombuffer(b"".join(self.linetables), np.uint8),
        }
        made = [
            Chunk("start", {**start, "status_texts": status_texts(), **self.start}),
            Chunk("processes", {"rows": self.processes}),
            Chunk("threads", {"rows": self.threads}),
            Chunk("codes", {"rows": self.codes}, tables),
            Chunk("files", {"rows": self.files}),
            Chunk("natives", {}, {"rows": array(self.natives, NATIVE_DTYPE)}),
            Chunk(
                "stacks",
                {},
                {
                    "stacks": array(self.stacks, STACK_DTYPE),
                    "python": array(self.python, PYTHON_FRAME_DTYPE),
                    "native": array(self.native_frames, NATIVE_INDEX_DTYPE),
                },
            ),
            Chunk("samples", {}, {"rows": array(self.samples, SAMPLE_DTYPE)}),
            Chunk("events", {}, {"rows": array(self.events, EVENT_DTYPE)}),
            Chunk("lock_holders", {}, {"rows": array(self.lock_holders, LOCK_HOLDER_DTYPE)}),
            Chunk("wakers", {"rows": self.wakers}),
            Chunk("objects", {"rows": self.objects}),
            Chunk("last_waits", {"rows": self.last_waits}),
            Chunk("waits", {}, {"rows": array(self.waits, WAIT_DTYPE)}),
            Chunk("short_waits", {}, {"rows": array(self.short_waits, SHORT_DTYPE)}),
            Chunk("totals", {}, {"rows": array(self.totals, TOTAL_DTYPE)}),
            Chunk("names", {"texts": self.texts}, {"rows": array(self.names, NAME_DTYPE)}),
            Chunk("marks", {"texts": self.texts}, {"rows": array(self.marks, MARK_DTYPE)}),
            Chunk("calls", {"texts": self.texts}, {"rows": array(self.calls, CALL_DTYPE)}),
            Chunk("tasks", {"rows": self.tasks}),
            Chunk("task_waits", {"texts": self.texts}, {"rows": array(self.task_waits, TASK_WAIT_DTYPE)}),
        ]
        if self.end is not None:
            made.append(Chunk("end", self.end))
        return made

    def recording(self) -> Recording:
        """Written and read back."""
        return read(self.chunks())


def array(rows: Sequence[np.void], dtype: np.dtype[np.void]) -> Any:
    """Rows as one array."""
    made = np.zeros(len(rows), dtype)
    for index, content in enumerate(rows):
        made[index] = content
    return made


def chunk_of(chunks: Sequence[Chunk], kind: str) -> Chunk:
    """The first of this kind."""
    return next(chunk for chunk in chunks if chunk.kind == kind)


def replace_chunk(chunks: list[Chunk], chunk: Chunk) -> None:
    """Puts it in the place of the first of its kind."""
    chunks[chunks.index(chunk_of(chunks, chunk.kind))] = chunk


def file_bytes(chunks: Sequence[Chunk]) -> bytes:
    """The file that holds these chunks."""
    return MAGIC + b"".join(map(encode, chunks))


def read(chunks: Sequence[Chunk]) -> Recording:
    """What a reader makes of these chunks."""
    return read_recording(io.BytesIO(file_bytes(chunks)))


@dataclass
class Story:
    """What one thread does, one thing after the other; rows of the recording follow as in ebpf/off_cpu.bpf.c."""

    made: HandMade
    thread: int
    now_ns: int = START_NS
    state: int = UNKNOWN
    since_ns: int = START_NS
    wake_ns: int = 0
    on_cpu_ns: int = 0
    blocked_ns: int = 0
    runqueue_ns: int = 0
    stolen_ns: int = 0
    burst_stolen_ns: int = 0
    running_ns: int = 0
    wait: dict[str, Any] = field(default_factory=dict)
    is_short: bool = False

    @classmethod
    def begin(
        cls, made: HandMade, tid: int = 100, process: int = 0, first_ns: int = START_NS, state: int = UNKNOWN
    ) -> Story:
        """A new thread, watched from first_ns on."""
        wait = {"status": int(Status.NOT_STARTED), "syscall": -1} if state == RUNNABLE else {}
        return cls(made, made.thread(tid, process, first_ns), first_ns, state, first_ns, wait=wait)

    def run(self, ns: int, *samples: tuple[int, int], stolen: int = 0) -> Story:
        """On a CPU for ns and robbed of `stolen` more. samples: (nanoseconds into it, stack)."""
        if self.state not in (UNKNOWN, ON_CPU):
            self._back_on_cpu()
        for into_ns, stack in samples:
            on_cpu_ns = self.on_cpu_ns + into_ns
            at_ns = self.now_ns + into_ns
            values = {"thread": self.thread, "time_ns": at_ns, "on_cpu_ns": on_cpu_ns, "stack": stack}
            self.made.samples.append(row(SAMPLE_DTYPE, **values))
        self.state, self.running_ns = ON_CPU, ns
        self.now_ns += ns + stolen
        return self

    def block(self, ns: int, ready: int = 0, stack: int = 0, syscall: int = NANOSLEEP, **wait: Any) -> Story:
        """Asleep for ns, then runnable for `ready`."""
        self._leave_cpu(BLOCKED, {"stack": stack, "syscall": syscall, "task_state": 1, **wait})
        self.now_ns += ns
        self.wake_ns = self.now_ns if ready else 0
        self.now_ns += ready
        return self

    def block_short(self, ns: int, ready: int = 0, **wait: Any) -> Story:
        """As block(), but the wait has no row: it is added up."""
        self.block(ns, ready, **wait)
        self.is_short = True
        return self

    def go_on(self, ns: int) -> Story:
        """The same for longer."""
        self.now_ns += ns
        self.running_ns += ns * (self.state in (UNKNOWN, ON_CPU))
        return self

    def preempt(self, ns: int, stack: int = 0) -> Story:
        """Runnable all the time, for ns."""
        self._leave_cpu(RUNNABLE, {"stack": stack, "syscall": -1})
        self.now_ns += ns
        return self

    def die(self) -> None:
        """Its last burst ends here."""
        self._leave_cpu(DEAD, {})
        self._total(self.now_ns)

    def total(self) -> Story:
        """It is looked at."""
        self._total(self.now_ns)
        return self

    def _leave_cpu(self, state: int, wait: dict[str, Any]) -> None:
        if self.state in (BLOCKED, RUNNABLE):
            self._back_on_cpu()
        self.on_cpu_ns += self.running_ns
        stolen_ns = self.now_ns - self.since_ns - self.running_ns
        self.burst_stolen_ns += stolen_ns
        self.stolen_ns += stolen_ns
        self.state, self.since_ns, self.wait, self.running_ns = state, self.now_ns, wait, 0
        self.is_short = False

    def _back_on_cpu(self) -> None:
        woken = self.since_ns if self.state == RUNNABLE else self.wake_ns or self.now_ns
        times = {"time_ns": self.now_ns, "on_cpu_ns": self.on_cpu_ns, "stolen_ns": self.burst_stolen_ns}
        times |= {"blocked_ns": woken - self.since_ns, "runqueue_ns": self.now_ns - woken}
        if self.is_short:
            self.made.short(self.thread, times["blocked_ns"], times["runqueue_ns"], **self._wait_of(SHORT_DTYPE))
        else:
            self.made.waits.append(row(WAIT_DTYPE, thread=self.thread, **times, **self.wait))
        self.blocked_ns += times["blocked_ns"]
        self.runqueue_ns += times["runqueue_ns"]
        self.state, self.since_ns, self.wake_ns = ON_CPU, self.now_ns, 0
        if not self.is_short:
            self.burst_stolen_ns = 0
        self.is_short = False

    def _total(self, time_ns: int) -> None:
        values = {name: getattr(self, name) for name in ("since_ns", "wake_ns", "on_cpu_ns", "blocked_ns", "state")}
        values |= {name: getattr(self, name) for name in ("thread", "runqueue_ns", "stolen_ns", "running_ns")}
        self.made.totals.append(row(TOTAL_DTYPE, time_ns=time_ns, **values, **self._wait_of(TOTAL_DTYPE)))

    def _wait_of(self, dtype: np.dtype[np.void]) -> dict[str, Any]:
        """What these rows have of the wait."""
        return {name: value for name, value in self.wait.items() if name in (dtype.names or ())}


def small() -> HandMade:
    """One of everything."""
    made = HandMade()
    made.process(100, gil=[0x7F00, 96])
    made.process(101, name="wörker 函数", interpreter="", entry_marks_from=0)
    work = made.code("Worker.run", linetable=b"\x80\x00\xd8\x04")
    made.code("", reason="the code object is not readable")
    kernel, python, library = made.file("[kernel]", "kernel"), made.file("/usr/bin/python3.11"), made.file("/a/libk.so")
    unnamed = made.native(library, address=0x1F40, flags=NATIVE_EXACT)
    inlined = made.native(library, ("dot", "/src/dot.h", 7, NAME_INLINED), ("kernel::run()", "/src/run.cc", 40, 0))
    evaluation = made.native(python, ("_PyEval_EvalFrameDefault", "", 0, NAME_EVAL))
    start = made.native(NO_FILE, address=0x7F00_0000_1000)
    native = (unnamed, inlined, evaluation, start)
    in_kernel = made.native(kernel, ("futex_wait", "", 0, 0), address=0xFFFF_8123_4567)
    stack = made.stack((work, 4, 0), (work, -2, 1), native=native, kernel=[in_kernel])
    made.stack((2, 0, 0), status=4)
    waker = made.waker(1)
    made.waker(-1, 7, 8, "kworker")
    by_thread = {"waker": waker, "waker_kind": 1, "waker_stack": stack, "flags": HOLDS_GIL}
    main = Story.begin(made).run(5 * MS, (MS, stack)).block(7 * MS, MS, stack, args=(1, 2, 3), **by_thread).run(MS)
    for_gil = {"flags": WAITS_FOR_GIL, "holder": 2, "holder_stack": stack, "waker_kind": 2, "args": (0x7F20, 0, 0)}
    main.block(5 * MS, 0, stack, FUTEX, **for_gil).run(MS).block_short(MS // 20, syscall=FUTEX).run(MS).total()
    other = Story.begin(made, tid=101, process=1).run(3 * MS, (2 * MS, 2))
    other.block_short(3 * MS, syscall=FUTEX, flags=UNSAMPLED, count=9).block(10 * MS).total()
    made.mark(1, START_NS + 2 * MS, "step", 1.5)
    made.call(0, "cudaMemcpy", 3, 6 * MS, bytes=3 << 20, direction=2)
    made.event("page-faults", 0, START_NS + 3 * MS, 40, stack)
    made.lock_holder(0, 1, START_NS + 4 * MS)
    made.last_waits = [table_row(0, RecordedLastWait(1, "lock", "lock #1", 1, "python (100)", "", 10 * MS))]
    made.start["min_block_us"] = 100
    made.start["counts_calls"] = True
    made.end = {"end_ns": made.totals[0]["time_ns"].item(), "own_cpu_ns": 5, "lost": {"event lost, buffer full": 3}}
    made.end["call_libraries"] = {"/usr/lib/libcudart.so.13": 44}
    task = made.task("fetch")
    made.task_wait(task, START_NS, START_NS + 1000, stack, "Task", awaited_by=task + 1, awaited_by_count=1)
    return made
