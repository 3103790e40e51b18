"""Which processes and threads are watched: at the start, and as they fork, exec and end.

It keeps the recording's process and thread tables and tells the kernel side where each process keeps its Python frames.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bpfprof import abi
from bpfprof.capture.codes import CodeReader, ProcessCodes
from bpfprof.capture.first_sleeps import FirstSleeps
from bpfprof.capture.process import TrackedProcess, command_name, kernel_record, recorded
from bpfprof.cpython.code_objects import CodeObject, Unresolved, read_code_object
from bpfprof.cpython.detect import NotPython, find_interpreter
from bpfprof.errors import TargetError
from bpfprof.kernel.mapping_events import MappingEvent
from bpfprof.kernel.tables import Tables
from bpfprof.model.ids import Pid, Tid
from bpfprof.proc import tasks
from bpfprof.proc.memory import ProcessMemory
from bpfprof.recording.tables import RecordedThread, table_row

if TYPE_CHECKING:
    from bpfprof.code.maps import NativeCode

_YOUNG_S = 0.5
_ASK_AGAIN_S = 0.25
_DETECT_AGAIN_S = 5.0  # how long after an exec a starting interpreter is looked for


def exec_ns(pid: int, tid: int) -> int:
    """The scheduler's sum_exec_runtime of a thread, 0 when it cannot be read."""
    stat = tasks.schedstat(Pid(pid), Tid(tid))
    return stat.on_cpu_ns if stat else 0


@dataclass(slots=True)
class Tracker:
    """Processes and threads by pid and tid, and the rows of the recording's tables that are new."""

    tables: Tables
    follow_children: bool
    watches_all: bool = False
    native: NativeCode | None = None  # None: no native frames are wanted
    processes: dict[Pid, TrackedProcess] = field(default_factory=dict)
    thread_index: dict[int, int] = field(default_factory=dict)
    thread_count: int = 0  # of all, also those that have ended
    unwatched_count: int = 0  # threads that did not fit into the kernel side's table
    first_sleeps: FirstSleeps = field(init=False)
    process_rows: list[dict[str, Any]] = field(default_factory=list)
    thread_rows: list[dict[str, Any]] = field(default_factory=list)
    _without_runtime: set[tuple[str, int]] = field(default_factory=set)  # (device, inode) of files without Python
    _young_until_s: float = 0.0
    _process_count: int = 0
    _named_threads: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first_sleeps = FirstSleeps(self.thread_index)

    @property
    def is_young(self) -> bool:
        """Whether a process has just begun: its interpreter may be starting, and its code may not be there for long."""
        return time.monotonic() < self._young_until_s or any(p.detect_until_s for p in self.processes.values())

    @property
    def codes_of(self) -> dict[int, ProcessCodes]:
        """Code objects by pid."""
        return {pid: process.codes for pid, process in self.processes.items()}

    # --- at the start

    def watch(self, pid: Pid, command: tuple[str, ...] = ()) -> TrackedProcess:
        """Begins to watch a running process and all its threads. Raises TargetError when it is gone.

        One that is about to be let run and become `command` is treated like one that was just born.
        """
        process = self._add_process(pid, is_kernel_thread=self.watches_all and tasks.is_kernel_thread(pid))
        process.is_looked_at = not self.watches_all
        if command:
            process.name, process.command_line = command_name(command), list(command)
            self._row(process)
        elif not self.watches_all:
            self._look_at(process)
        self._tell_kernel(process, is_new=True)
        # A thread born by one that is not listed yet is added at fork, so two equal looks see all of them.
        seen: set[Tid] = set()
        while new := set(tasks.list_threads(pid)) - seen:
            for tid in sorted(new):
                self._watch_thread(process, tid, is_born=bool(command))
            seen |= new
        if not seen:
            raise TargetError(f"process {pid} ended before anything was seen")
        return process

    def watch_all(self) -> None:
        """Begins to watch every process; each is looked at when the kernel side meets it."""
        seen: set[Pid] = set()
        while new := set(tasks.list_processes()) - seen - {Pid(os.getpid())}:
            for pid in sorted(new):
                with contextlib.suppress(TargetError):  # it has ended meanwhile
                    self.watch(pid)
            seen |= new

    def watch_children(self, pid: Pid) -> None:
        """Begins to watch the descendants a watched process has already; those to come are added at fork."""
        for child in tasks.children(pid):
            if child not in self.processes:
                with contextlib.suppress(TargetError):  # it has ended meanwhile
                    self.watch(child)
                    self.watch_children(child)

    def _watch_thread(self, process: TrackedProcess, tid: Tid, is_born: bool) -> None:
        now = time.monotonic_ns()
        record = abi.pack(
            "bp_thread",
            tgid=process.pid,
            state=abi.ThreadState["BP_THREAD_RUNNABLE" if is_born else "BP_THREAD_UNKNOWN"],
            status=abi.Status["BP_NOT_STARTED" if is_born else "BP_STACK_NOT_TAKEN"],
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
        """Takes the stacks of threads that sleep already.

        Of a whole machine, a process is looked at when the kernel side meets it: one that sleeps all the time, here, if
        it runs Python.
        """
        if not process.is_looked_at and not process.is_kernel_thread:
            self._detect(process)
            if process.interpreter is not None:
                self._look_at(process)
                self._tell_kernel(process)
        self.first_sleeps.look_at(process)

    # --- as they change

    def born(self, pid: Pid, tid: Tid, parent: Pid, time_ns: int) -> None:
        """A thread or process was forked; the kernel side watches it already."""
        if int(pid) == int(tid) and pid in self.processes:
            self.ended(pid)  # of its end nothing was heard
        process = self.processes.get(pid)
        if process is None:
            process = self._add_process(pid, parent=self.processes.get(parent))
            process.is_looked_at = not self.watches_all
            if parent in self.processes:
                process.is_looked_at = self.processes[parent].is_looked_at
            if self.native is not None:
                self.native.share(pid, parent)
                self._tell_kernel(process)  # what the kernel side copied at birth may be out of date
        self._add_thread(process, tid, time_ns)

    def will_have_executed(self, pid: Pid, time_ns: int) -> None:
        """A process runs another program since then: its code is looked at at once, all else at `executed()`."""
        process = self.processes.get(pid)
        if process is None or self.native is None:
            return
        self._young_until_s = time.monotonic() + _YOUNG_S
        self.native.look_at(pid, time_ns)
        process.is_looked_at = process.is_changing = True
        process.is_kernel_thread = False
        self._tell_kernel(process)

    def executed(self, pid: Pid, tid: Tid, time_ns: int) -> None:
        """A process runs another program since then."""
        process = self.processes.get(pid)
        if process is None:
            return
        if process.memory is not None:
            process.memory.close()  # it belongs to the program before
        process.is_changing = False
        self._open_memory(process)
        process.codes = ProcessCodes(process.index, self._reader(process))
        process.interpreter, process.note, process.is_kernel_thread = None, "", False
        self._young_until_s = time.monotonic() + _YOUNG_S
        self._name(process)
        if tid in self.thread_index:
            self._name_thread(process, tid, self.thread_index[tid])
        if self.native is not None:
            self.native.look_at(pid, time_ns)
        self._look_at(process)
        self._tell_kernel(process)
        if process.interpreter is not None:
            self.look_at_sleepers(process)

    def asked(self, pid: Pid) -> None:
        """The kernel side met a process it knows too little of: new, or with code at an unknown address."""
        process = self.processes.get(pid)
        if process is None or process.is_kernel_thread:
            return
        if not process.is_looked_at:
            self._look_at(process)
            self._tell_kernel(process)
        elif not self._look_again(process):  # nothing new: not to be asked at once again
            process.asked_again_s = time.monotonic() + _ASK_AGAIN_S

    def remapped(self, mapped: Mapping[Pid, Sequence[MappingEvent]]) -> None:
        """These processes mapped code: perhaps an interpreter. Without events: at a time that is not known."""
        for pid, events in mapped.items():
            process = self.processes.get(pid)
            if process is not None and process.is_looked_at:
                self._look_again(process, events)

    def _look_again(self, process: TrackedProcess, mapped: Sequence[MappingEvent] = ()) -> bool:
        """Whether the mappings are others than before, which they are since the first of these events."""
        first_ns = min((event.time_ns for event in mapped), default=0)
        if self.native is None or not self.native.look_at(process.pid, first_ns, mapped):
            return False
        was_python = process.interpreter is not None
        if not was_python and not process.is_kernel_thread and not process.is_changing:
            process.detect_until_s = time.monotonic() + _DETECT_AGAIN_S  # it may be just starting
            self._detect(process)
        self._tell_kernel(process)
        if process.interpreter is not None and not was_python and not process.is_changing:
            self.look_at_sleepers(process)
        return True

    def ended(self, pid: Pid) -> None:
        """The first thread of a process is gone, and mostly the process; its pid may be another's from now on."""
        if set(tasks.list_threads(pid)) - {pid}:
            return
        process = self.processes.pop(pid, None)
        if process is not None and process.memory is not None:
            process.memory.close()
        if self.native is not None:
            self.native.forget(pid)

    def detect_started(self) -> None:
        """Looks again at processes whose interpreter was still starting."""
        now = time.monotonic()
        for process in list(self.processes.values()):
            if 0 < process.asked_again_s < now:
                process.asked_again_s = 0.0
                self._tell_kernel(process)
            if process.detect_until_s and not process.is_changing:
                if self.native is not None:
                    self.native.look_at(process.pid)
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

    def was_called(self, tid: Tid, name: str) -> None:
        """A thread that is gone had this name, "" when it is not known."""
        if name and tid in self.thread_index:
            self._rename(self.thread_index[tid], name)

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

    def _look_at(self, process: TrackedProcess) -> None:
        process.is_looked_at = True
        process.detect_until_s = time.monotonic() + _DETECT_AGAIN_S
        if self.native is not None:
            self.native.look_at(process.pid)
        self._detect(process)

    def _add_process(
        self, pid: Pid, parent: TrackedProcess | None = None, is_kernel_thread: bool = False
    ) -> TrackedProcess:
        index = self._process_count
        self._process_count += 1
        process = TrackedProcess(index, pid, "", [], ProcessCodes(index, None))
        process.is_kernel_thread = parent.is_kernel_thread if parent else is_kernel_thread
        if not process.is_kernel_thread:
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
            found = find_interpreter(process.pid, process.memory, self._without_runtime)
        except TargetError:
            found = NotPython("it ended before it was looked at")
        if isinstance(found, NotPython):
            process.note = found.reason
            # An interpreter that is still starting is waited for. One that may yet be loaded is seen when it is mapped.
            waits = found.retry and (self.native is None or found.version is not None)
            process.detect_until_s = process.detect_until_s if waits else 0.0
        elif found.tss_key < 0:
            process.note, process.detect_until_s = found.problem, 0.0
        else:
            process.interpreter, process.note, process.detect_until_s = found, "", 0.0
        self._row(process)

    def _tell_kernel(self, process: TrackedProcess, is_new: bool = False) -> None:
        code_map = self.native.map_of.get(process.pid) if self.native else None
        mappings = (code_map.index, code_map.count, code_map.generation) if code_map else None
        self.tables.set_process(process.pid, kernel_record(process, self.follow_children, mappings), is_new)

    def _name(self, process: TrackedProcess) -> None:
        process.name = tasks.process_name(process.pid) or process.name
        process.command_line = tasks.process_command_line(process.pid) or process.command_line
        self._row(process)

    def _row(self, process: TrackedProcess) -> None:
        self.process_rows.append(table_row(process.index, recorded(process)))

    def _add_thread(self, process: TrackedProcess, tid: Tid, first_ns: int) -> None:
        index = self.thread_index[tid] = self.thread_count
        self.thread_count += 1
        self.thread_rows.append(table_row(index, RecordedThread(process.index, tid, first_ns)))
        self._name_thread(process, tid, index, default=process.name)

    def _name_thread(self, process: TrackedProcess, tid: Tid, index: int, default: str = "") -> None:
        self._rename(index, tasks.thread_name(process.pid, tid) or default)

    def _rename(self, index: int, name: str) -> None:
        if name and self._named_threads.get(index) != name:
            self._named_threads[index] = name
            self.thread_rows.append({"index": index, "name": name})
