"""Which processes and threads are watched: at the start, and as they fork, exec and end.

It keeps the recording's process and thread tables and tells the kernel side where each process keeps its Python frames.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bpfprof import abi
from bpfprof.capture.stacks import ProcessCodes, StackTable
from bpfprof.cpython.code_objects import CodeObject, Unresolved, read_code_object
from bpfprof.cpython.detect import Interpreter, NotPython, find_interpreter
from bpfprof.cpython.layout import NONE
from bpfprof.cpython.thread_state import read_thread_states, walk_frames
from bpfprof.errors import TargetError
from bpfprof.kernel.tables import Tables
from bpfprof.model.ids import Pid, Tid
from bpfprof.proc import tasks
from bpfprof.proc.memory import ProcessMemory

# glibc x86-64: struct pthread.specific_1stblock[key].data, measured from the thread pointer (glibc 2.36, nptl/descr.h).
_TSS_FIRST_SLOT, _TSS_SLOT_BYTES = 0x318, 16
_TICK_NS = 10_000_000  # CONFIG_HZ is 100 at least
_DETECT_AGAIN_S = 5.0  # how long after an exec a starting interpreter is looked for


def exec_ns(pid: int, tid: int) -> int:
    """The scheduler's sum_exec_runtime of a thread, 0 when it cannot be read."""
    stat = tasks.schedstat(Pid(pid), Tid(tid))
    return stat.on_cpu_ns if stat else 0


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
    stacks: StackTable
    follow_children: bool
    processes: dict[Pid, TrackedProcess] = field(default_factory=dict)
    thread_index: dict[int, int] = field(default_factory=dict)
    unwatched_count: int = 0  # threads that did not fit into the kernel side's table
    first_sleeps: dict[int, FirstSleep] = field(default_factory=dict)  # by thread index
    process_rows: list[dict[str, Any]] = field(default_factory=list)
    thread_rows: list[dict[str, Any]] = field(default_factory=list)
    _process_count: int = 0
    _thread_count: int = 0
    _named_threads: dict[int, str] = field(default_factory=dict)

    @property
    def is_detecting(self) -> bool:
        """Whether an interpreter that is starting is being waited for."""
        return any(process.detect_until_s for process in self.processes.values())

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

    def _watch_thread(self, process: TrackedProcess, tid: Tid) -> None:
        record = np.zeros(1, abi.THREAD_DTYPE)
        now = time.monotonic_ns()
        record["tgid"], record["status"], record["syscall"] = process.pid, abi.Status["BP_STACK_NOT_TAKEN"], -1
        record["since_ns"] = record["first_ns"] = now
        record["exec_ns"] = exec_ns(process.pid, tid)
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
            if walk.frames:
                stack = self.stacks.add_frames(process.codes, list(walk.frames), status)
        now = time.monotonic_ns()
        if tasks.switch_count(process.pid, tid) == switches:
            args = (call.args[0], call.args[1], call.args[2]) if call.args else (0, 0, 0)
            self.first_sleeps[self.thread_index[tid]] = FirstSleep(now, stack, call.number, args)

    # --- as they change

    def born(self, event: npt.NDArray[np.void]) -> None:
        """A thread or process was forked; the kernel side watches it already."""
        pid, tid = Pid(int(event["tgid"])), Tid(int(event["tid"]))
        process = self.processes.get(pid)
        if process is None:
            process = self._add_process(pid, parent=self.processes.get(Pid(int(event["args"][0]))))
        self._add_thread(process, tid, int(event["time_ns"]))

    def executed(self, event: npt.NDArray[np.void]) -> None:
        """A process runs another program now."""
        process = self.processes.get(Pid(int(event["tgid"])))
        if process is None:
            return
        if process.memory is not None:
            process.memory.close()  # it belongs to the program before
        process.memory = ProcessMemory(process.pid)
        process.codes = ProcessCodes(process.index, self._reader(process))
        process.interpreter, process.note = None, ""
        process.detect_until_s = time.monotonic() + _DETECT_AGAIN_S
        self._name(process)
        if int(event["tid"]) in self.thread_index:
            self._name_thread(process, Tid(int(event["tid"])), self.thread_index[int(event["tid"])])
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

    def add_running_time(
        self, rows: npt.NDArray[np.void], records: npt.NDArray[np.void], tids: npt.NDArray[np.uint32]
    ) -> None:
        """Fills running_ns of rows (TOTAL_DTYPE): how long threads on a CPU really ran since they got it."""
        states = abi.ThreadState["BP_THREAD_ON_CPU"], abi.ThreadState["BP_THREAD_UNKNOWN"]
        for position in np.flatnonzero(np.isin(records["state"], states)).tolist():
            now = exec_ns(int(records["tgid"][position]), int(tids[position]))
            open_ns = int(rows["time_ns"][position]) - int(rows["since_ns"][position])
            ran = now - int(records["exec_ns"][position]) if now else open_ns
            # The kernel brings its figure up to date at each tick only: less than that is no difference.
            rows["running_ns"][position] = min(max(ran, 0), open_ns) if open_ns - ran > _TICK_NS else max(open_ns, 0)

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
        try:
            process.memory = ProcessMemory(pid)
        except OSError as error:
            process.note = f"memory not readable: {error.strerror}"
        reader = self._reader(process)
        process.codes = parent.codes.forked(index, reader) if parent else ProcessCodes(index, reader)
        if parent is not None:
            process.interpreter, process.note = parent.interpreter, parent.note
            process.name, process.command_line = parent.name, parent.command_line
        self.processes[pid] = process
        self._name(process)
        return process

    def _reader(self, process: TrackedProcess) -> Any:
        def read(address: int) -> CodeObject | Unresolved:
            if process.memory is None or process.interpreter is None:
                return Unresolved("process gone before its code was read")
            interpreter = process.interpreter
            return read_code_object(process.memory, interpreter.layout, address, interpreter.code_type_address)

        return read

    def _detect(self, process: TrackedProcess) -> None:
        found = find_interpreter(process.pid, process.memory)
        if isinstance(found, NotPython):
            process.note = found.reason
            process.detect_until_s = process.detect_until_s if found.retry else 0.0
        elif found.tss_key < 0:
            process.note, process.detect_until_s = found.problem, 0.0
        else:
            process.interpreter, process.note, process.detect_until_s = found, "", 0.0
        self._row(process)

    def _tell_kernel(self, process: TrackedProcess) -> None:
        record = np.zeros(1, abi.PROCESS_DTYPE)
        flags = 0 if process.detect_until_s else int(abi.ProcessFlags["BP_PROCESS_KNOWN"])
        if self.follow_children:
            flags |= abi.ProcessFlags["BP_PROCESS_FOLLOW_CHILDREN"]
        if process.interpreter is not None:
            flags |= abi.ProcessFlags["BP_PROCESS_PYTHON"]
            layout = process.interpreter.layout
            record["tss_offset"] = _TSS_FIRST_SLOT + _TSS_SLOT_BYTES * process.interpreter.tss_key
            record["layout"]["tstate_frame"] = layout.thread_frame
            record["layout"]["cframe_frame"] = 0xFFFF if layout.cframe_frame == NONE else layout.cframe_frame
            record["layout"]["tstate_chunk"] = layout.thread_datastack_chunk
            record["layout"]["frame_code"] = layout.frame_code
            record["layout"]["frame_previous"] = layout.frame_previous
            record["layout"]["frame_instruction"] = layout.frame_instruction
            record["layout"]["frame_mark"] = layout.mark_offset
            record["layout"]["code_identity"] = layout.code_filename
        record["flags"] = flags
        self.tables.set_process(process.pid, record)

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
