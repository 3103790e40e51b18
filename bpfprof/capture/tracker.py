"""Which processes and threads are watched: at the start, and as they fork, exec and end.

It keeps the recording's process and thread tables and tells the kernel side where each process keeps its Python frames.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from bpfprof import abi
from bpfprof.capture.codes import CodeReader, ProcessCodes
from bpfprof.cpython.code_objects import CodeObject, Unresolved, identity_start, read_code_object
from bpfprof.cpython.detect import (
    TSD_DATA_OFFSET,
    TSD_ENTRY_BYTES,
    TSD_FIRST_BLOCK,
    Interpreter,
    NotPython,
    find_interpreter,
)
from bpfprof.cpython.layout import NONE, Layout
from bpfprof.cpython.thread_state import read_thread_states, walk_frames
from bpfprof.errors import TargetError
from bpfprof.kernel.tables import Tables
from bpfprof.model.ids import Pid, Tid
from bpfprof.proc import tasks
from bpfprof.proc.memory import ProcessMemory

_YOUNG_S = 0.5
_DETECT_AGAIN_S = 5.0  # how long after an exec a starting interpreter is looked for


def exec_ns(pid: int, tid: int) -> int:
    """The scheduler's sum_exec_runtime of a thread, 0 when it cannot be read."""
    stat = tasks.schedstat(Pid(pid), Tid(tid))
    return stat.on_cpu_ns if stat else 0


def _kernel_layout(layout: Layout) -> bytes:
    """What the frame walk of the kernel side needs to know of a CPython version."""
    return abi.pack(
        "bp_python_layout",
        tstate_frame=layout.thread_frame,
        cframe_frame=0xFFFF if layout.cframe_frame == NONE else layout.cframe_frame,
        tstate_chunk=layout.thread_datastack_chunk,
        frame_code=layout.frame_code,
        frame_previous=layout.frame_previous,
        frame_instruction=layout.frame_instruction,
        frame_mark=layout.mark_offset,
        code_identity=identity_start(layout),
        name_hash=layout.unicode_hash if layout.code_version == NONE else 0,
    )


class FrameTable(Protocol):
    """Takes stacks that were walked from user space (see capture.stacks)."""

    def add_frames(self, codes: ProcessCodes, frames: list[tuple[int, int, int]], status: int) -> int: ...


@dataclass(slots=True)
class TrackedProcess:
    """One process of the recording, by its index there."""

    index: int
    pid: Pid
    name: str
    command_line: list[str]
    codes: ProcessCodes
    memory: ProcessMemory | None = None
    interpreter: Interpreter | None = None
    note: str = ""  # why it has no Python frames
    detect_until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FirstSleep:
    """Where a thread slept whose stack the kernel side could not take; looked at from user space at time_ns."""

    time_ns: int
    stack: int
    syscall: int
    args: tuple[int, int, int]


@dataclass(slots=True)
class Tracker:
    """Processes and threads by pid and tid, and the rows of the recording's tables that are new."""

    tables: Tables
    follow_children: bool
    stacks: FrameTable | None = None  # where stacks of sleepers go; given once recording has begun
    processes: dict[Pid, TrackedProcess] = field(default_factory=dict)
    thread_index: dict[int, int] = field(default_factory=dict)
    unwatched_count: int = 0  # threads that did not fit into the kernel side's table
    first_sleeps: dict[int, FirstSleep] = field(default_factory=dict)  # by thread index
    process_rows: list[dict[str, Any]] = field(default_factory=list)
    thread_rows: list[dict[str, Any]] = field(default_factory=list)
    _young_until_s: float = 0.0
    _process_count: int = 0
    _thread_count: int = 0
    _named_threads: dict[int, str] = field(default_factory=dict)

    @property
    def is_young(self) -> bool:
        """Whether a process has just begun: its interpreter may be starting, and its code may not be there for long."""
        return time.monotonic() < self._young_until_s or any(p.detect_until_s for p in self.processes.values())

    @property
    def codes_of(self) -> dict[int, ProcessCodes]:
        """Code objects by pid."""
        return {pid: process.codes for pid, process in self.processes.items()}

    # --- at the start

    def watch(self, pid: Pid, about_to_exec: bool = False) -> TrackedProcess:
        """Begins to watch a running process and all its threads. Raises TargetError when it is gone."""
        process = self._add_process(pid)
        if not about_to_exec:
            process.detect_until_s = time.monotonic() + _DETECT_AGAIN_S
            self._detect(process)
        self._tell_kernel(process)
        # A thread born by one that is not listed yet is added at fork, so two equal looks see all of them.
        seen: set[Tid] = set()
        while new := set(tasks.list_threads(pid)) - seen:
            for tid in sorted(new):
                self._watch_thread(process, tid)
            seen |= new
        if not seen:
            raise TargetError(f"process {pid} ended before anything was seen")
        return process

    def watch_children(self, pid: Pid) -> None:
        """Begins to watch the descendants a watched process has already; those to come are added at fork."""
        for child in tasks.children(pid):
            if child not in self.processes:
                with contextlib.suppress(TargetError):  # it has ended meanwhile
                    self.watch(child)
                    self.watch_children(child)

    def _watch_thread(self, process: TrackedProcess, tid: Tid) -> None:
        now = time.monotonic_ns()
        record = abi.pack(
            "bp_thread",
            tgid=process.pid,
            status=abi.Status["BP_STACK_NOT_TAKEN"],
            syscall=-1,
            since_ns=now,
            first_ns=now,
            exec_ns=exec_ns(process.pid, tid),
        )
        try:
            if self.tables.add_thread(tid, record):
                self._add_thread(process, tid, now)
        except OSError:  # the table is full
            self.unwatched_count += 1

    def look_at_sleepers(self, process: TrackedProcess) -> None:
        """Takes the stacks of threads that sleep, from user space: for sleeps that began before it was watched."""
        states: dict[int, int] = {}
        if process.interpreter is not None and process.memory is not None:
            found = read_thread_states(process.memory, process.interpreter)
            states = {state.native_thread_id: state.address for state in found}
        for tid in tasks.list_threads(process.pid):
            if tid in self.thread_index:
                self._look_at_sleeper(process, tid, states)

    def _look_at_sleeper(self, process: TrackedProcess, tid: Tid, states: dict[int, int]) -> None:
        switches, call = tasks.switch_count(process.pid, tid), tasks.blocked_syscall(process.pid, tid)
        if call is None or process.memory is None:
            return
        stack = 0
        inner_tid = (tasks.namespace_tids(process.pid, tid) or (tid,))[-1]
        if process.interpreter is not None and inner_tid in states:
            walk = walk_frames(process.memory, process.interpreter, states[inner_tid])
            status = abi.Status["BP_OK"] if walk.complete else abi.Status["BP_PYTHON_FRAME_FAULT"]
            if walk.frames and self.stacks is not None:
                stack = self.stacks.add_frames(process.codes, list(walk.frames), status)
        now = time.monotonic_ns()
        if tasks.switch_count(process.pid, tid) == switches:
            args = (call.args[0], call.args[1], call.args[2]) if call.args else (0, 0, 0)
            self.first_sleeps[self.thread_index[tid]] = FirstSleep(now, stack, call.number, args)

    # --- as they change

    def born(self, pid: Pid, tid: Tid, parent: Pid, time_ns: int) -> None:
        """A thread or process was forked; the kernel side watches it already."""
        process = self.processes.get(pid)
        if process is None:
            process = self._add_process(pid, parent=self.processes.get(parent))
        self._add_thread(process, tid, time_ns)

    def executed(self, pid: Pid, tid: Tid) -> None:
        """A process runs another program now."""
        process = self.processes.get(pid)
        if process is None:
            return
        if process.memory is not None:
            process.memory.close()  # it belongs to the program before
        self._open_memory(process)
        process.codes = ProcessCodes(process.index, self._reader(process))
        process.interpreter, process.note = None, ""
        process.detect_until_s = time.monotonic() + _DETECT_AGAIN_S
        self._young_until_s = time.monotonic() + _YOUNG_S
        self._name(process)
        if tid in self.thread_index:
            self._name_thread(process, tid, self.thread_index[tid])
        self.detect_started()

    def detect_started(self) -> None:
        """Looks again at processes whose interpreter was still starting."""
        now = time.monotonic()
        for process in self.processes.values():
            if process.detect_until_s:
                self._detect(process)
                if not process.detect_until_s or now > process.detect_until_s:
                    process.detect_until_s = 0.0
                    self._tell_kernel(process)
                    self.look_at_sleepers(process)

    def refresh_names(self) -> None:
        """Threads name themselves after their birth; takes the names they have now."""
        for process in self.processes.values():
            for tid in tasks.list_threads(process.pid):
                if tid in self.thread_index:
                    self._name_thread(process, tid, self.thread_index[tid])

    def take_rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """New or changed (process rows, thread rows)."""
        rows = self.process_rows, self.thread_rows
        self.process_rows, self.thread_rows = [], []
        return rows

    def close(self) -> None:
        """Closes the processes' memory."""
        for process in self.processes.values():
            if process.memory is not None:
                process.memory.close()

    # --- one process, one thread

    def _add_process(self, pid: Pid, parent: TrackedProcess | None = None) -> TrackedProcess:
        index = self._process_count
        self._process_count += 1
        process = TrackedProcess(index, pid, "", [], ProcessCodes(index, None))
        self._open_memory(process)
        reader = self._reader(process, parent.codes if parent else None)
        process.codes = parent.codes.forked(index, reader) if parent else ProcessCodes(index, reader)
        if parent is not None:
            process.interpreter, process.note = parent.interpreter, parent.note
            process.name, process.command_line = parent.name, parent.command_line
        self.processes[pid] = process
        self._name(process)
        return process

    def _reader(self, process: TrackedProcess, parent: ProcessCodes | None = None) -> CodeReader:
        """Reads a process's code objects; those of a forked child that is gone from its parent, where they are too.

        The parent may have replaced one since: what is read is only used if it is the one the kernel side saw.
        """

        def read(address: int) -> CodeObject | Unresolved:
            found: CodeObject | Unresolved = Unresolved("process gone before its code was read")
            if process.memory is not None and process.interpreter is not None:
                interpreter = process.interpreter
                found = read_code_object(process.memory, interpreter.layout, address, interpreter.code_type_address)
            if isinstance(found, Unresolved) and parent is not None and parent.reader is not None:
                found = parent.reader(address)
            return found

        return read

    def _open_memory(self, process: TrackedProcess) -> None:
        process.memory = None
        try:
            process.memory = ProcessMemory(process.pid)
        except (OSError, TargetError) as error:
            process.note = f"memory not readable: {error}"

    def _detect(self, process: TrackedProcess) -> None:
        try:
            found = find_interpreter(process.pid, process.memory)
        except TargetError:
            found = NotPython("it ended before it was looked at")
        if isinstance(found, NotPython):
            process.note = found.reason
            process.detect_until_s = process.detect_until_s if found.retry else 0.0
        elif found.tss_key < 0:
            process.note, process.detect_until_s = found.problem, 0.0
        else:
            process.interpreter, process.note, process.detect_until_s = found, "", 0.0
        self._row(process)

    def _tell_kernel(self, process: TrackedProcess) -> None:
        flags = 0 if process.detect_until_s else int(abi.ProcessFlags["BP_PROCESS_KNOWN"])
        if self.follow_children:
            flags |= abi.ProcessFlags["BP_PROCESS_FOLLOW_CHILDREN"]
        python: dict[str, int | bytes] = {}
        if process.interpreter is not None:
            flags |= abi.ProcessFlags["BP_PROCESS_PYTHON"]
            python["tss_offset"] = TSD_FIRST_BLOCK + TSD_DATA_OFFSET + TSD_ENTRY_BYTES * process.interpreter.tss_key
            python["layout"] = _kernel_layout(process.interpreter.layout)
        self.tables.set_process(process.pid, abi.pack("bp_process", flags=flags, **python))

    def _name(self, process: TrackedProcess) -> None:
        process.name = tasks.process_name(process.pid) or process.name
        process.command_line = tasks.process_command_line(process.pid) or process.command_line
        self._row(process)

    def _row(self, process: TrackedProcess) -> None:
        interpreter = process.interpreter
        self.process_rows.append(
            {
                "index": process.index,
                "pid": process.pid,
                "name": process.name,
                "command_line": process.command_line,
                "python": list(interpreter.version) if interpreter else None,
                "python_version": interpreter.version_text if interpreter else "",
                "entry_marks_from": interpreter.layout.entry_marks_from if interpreter else 0,
                "shim_is_python": interpreter.layout.shim_is_python if interpreter else False,
                "gil": [interpreter.gil.address, interpreter.gil.size] if interpreter and interpreter.gil else None,
                "note": process.note,
            }
        )

    def _add_thread(self, process: TrackedProcess, tid: Tid, first_ns: int) -> None:
        index = self.thread_index[tid] = self._thread_count
        self._thread_count += 1
        self.thread_rows.append(
            {"index": index, "process": process.index, "tid": tid, "first_ns": first_ns, "name": ""}
        )
        self._name_thread(process, tid, index, default=process.name)

    def _name_thread(self, process: TrackedProcess, tid: Tid, index: int, default: str = "") -> None:
        name = tasks.thread_name(process.pid, tid) or default
        if name and self._named_threads.get(index) != name:
            self._named_threads[index] = name
            self.thread_rows.append({"index": index, "name": name})
