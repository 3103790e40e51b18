"""Which processes are watched, each with its state; where it keeps its Python frames the kernel side is told."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from bpfprof.capture.gone import Gone, lives
from bpfprof.capture.members import Members
from bpfprof.capture.naming import Naming
from bpfprof.capture.process import Process, ProcessCodes, State, command_name
from bpfprof.capture.process_rows import ProcessRows
from bpfprof.capture.threads import Threads
from bpfprof.cpython.detect import ENDED, Interpreter, NotPython, find_interpreter, why_not
from bpfprof.errors import TargetError
from bpfprof.kernel.mapping_events import MappingEvent
from bpfprof.kernel.tables import Tables
from bpfprof.model.ids import Pid, Tid
from bpfprof.proc import tasks
from bpfprof.proc.reader import reader

if TYPE_CHECKING:
    from bpfprof.code.maps import NativeCode
    from bpfprof.recording.writer import Sink

_BUSY_AFTER_EXEC_S = 2.0  # a program that has just begun maps code, and may be over soon
_LONG_LOOK_S = 0.05  # after a longer one a process rests, whatever it maps: it may have 60,000 mappings
_ASKED_S = 0.25
_STARTING_S = 5.0
InterpreterOf = Callable[[Pid], "Interpreter | None"]  # what a process was found to run before it is watched


class Processes:
    """Processes by pid; `code` is None where no native frames are wanted, `members` those of cgroups to be watched."""

    def __init__(
        self,
        tables: Tables,
        code: NativeCode | None,
        follow_children: bool = True,
        watches_all: bool = False,
        members: Members | None = None,
    ) -> None:
        self.by_pid: dict[Pid, Process] = {}
        self.threads = Threads(tables)
        self._rows = ProcessRows()
        self.naming = Naming(self.threads, self._rows.changed)
        self._tables = tables
        self.code = code
        self._follow_children = follow_children
        self._watches_all = watches_all
        self._members = members or Members([], [])
        self._count = 0
        self._newly_known: dict[Pid, Process] = {}
        self._without_runtime: dict[tuple[str, int], str] = {}  # (device, inode) of files without CPython
        self._began_s = -_BUSY_AFTER_EXEC_S  # when a program did last, time.monotonic()
        self.gone = Gone()
        self._launched: Pid | None = None
        self._met: dict[Pid, Process] = {}  # looked at, and not watched yet

    @property
    def youngest_s(self) -> float | None:
        """How long ago the last program began, if lately: its interpreter may be starting, its code soon be gone."""
        begun_s = [each.until_s - _STARTING_S for each in self.by_pid.values() if each.state is State.STARTING]
        age_s = max(0.0, time.monotonic() - max([self._began_s, *begun_s]))
        return age_s if begun_s or age_s < _BUSY_AFTER_EXEC_S else None

    def codes_of(self, pid: int) -> ProcessCodes | None:
        """The code objects of a process."""
        process = self.by_pid.get(Pid(pid))
        return process.codes if process else None

    # --- at the start

    def meet(self, pids: Iterable[Pid]) -> None:
        """Looks at what these and the children to be followed run: that takes a while, and `watch()` then does not."""
        for pid in tasks.with_descendants(pids) if self._follow_children else dict.fromkeys(pids):
            if pid not in tasks.own_processes():
                with contextlib.suppress(TargetError):  # it has ended meanwhile
                    self._met[pid] = self._meet(pid)

    def watch(self, pid: Pid, command: tuple[str, ...] = (), interpreter_of: InterpreterOf | None = None) -> Process:
        """Begins to watch a running process and all its threads. Raises TargetError when it is gone, or a zombie.

        One that is about to be let run and become `command` is treated like one that was just born.
        """
        process = self._met.pop(pid, None) or self._meet(pid, command, interpreter_of)
        self._tell_kernel(process, is_new=True)
        if process.stack_start != tasks.stack_start(pid):  # it was executed since, of which nobody has told
            self.executed(pid, Tid(pid), time.monotonic_ns())
        if not self.threads.watch_all(process.index, pid, is_born=bool(command)):
            raise TargetError(f"process {pid} ended before anything was seen")
        return process

    def watch_all(self, interpreter_of: InterpreterOf) -> None:
        """Begins to watch every process; those not known are looked at when the kernel side meets each."""
        seen: set[Pid] = set()
        while new := set(tasks.list_processes()) - seen - {Pid(os.getpid()), reader().child_pid}:
            for pid in sorted(new):
                with contextlib.suppress(TargetError):  # it has ended meanwhile
                    self.watch(pid, interpreter_of=interpreter_of)
            seen |= new

    def watch_members(self, at_once: bool = False) -> None:
        """Begins to watch who is in the cgroups and is not watched yet; at_once: whether it is time to look or not."""
        found = self._members.list() if at_once else self._members.list_when_due()
        seen: set[Pid] = set()
        while new := found - (self.by_pid.keys() - self._met.keys()) - seen:
            for pid in sorted(new):
                with contextlib.suppress(TargetError):  # it has ended meanwhile
                    self.watch(pid)
            seen |= new
            found = self._members.list()  # those that were born meanwhile, before their parent was watched

    def watch_children(self, pid: Pid) -> None:
        """Begins to watch the descendants a watched process has already; those to come are added at fork.

        What it has started to be recorded is none of its work.
        """
        for child in tasks.children(pid):
            if (child not in self.by_pid or child in self._met) and child not in tasks.own_processes():
                with contextlib.suppress(TargetError):  # it has ended meanwhile
                    self.watch(child)
                    self.watch_children(child)

    def look_for_python(self, process: Process) -> None:
        """Looks at a process that the kernel side has not met, if it runs Python: it may sleep all the time."""
        if process.state is State.UNSEEN:
            self._detect(process)
            if process.interpreter is not None:
                self._look_at(process)
                self._tell_kernel(process)

    # --- as they change

    def born(self, pid: Pid, tid: Tid, parent_pid: Pid, time_ns: int) -> None:
        """A thread or process was forked; the kernel side watches it already."""
        is_gone = self.gone.born(pid)
        if int(pid) == int(tid) and pid in self.by_pid:
            self._forget(pid)  # the pid was given again
        process = self.by_pid.get(pid)
        if process is None:
            parent = self.by_pid.get(parent_pid)
            process = self._fork(pid, parent, is_gone) if parent else self._add(Process(self._count, pid), is_gone)
            process.since_ns = time_ns
            if parent is None and self._watches_all:
                process.state = State.UNSEEN
            elif parent is None:  # nothing is known of what it runs
                self._look_at(process)
            if self.code is not None:
                self.code.share(pid, parent_pid)
            if self.code is not None and not is_gone:
                self._tell_kernel(process)  # what the kernel side copied at birth may be out of date
        else:
            self.naming.born(process)
        self.threads.add(process.index, pid, tid, time_ns, process.name, is_gone)

    def exec_seen(self, pid: Pid, time_ns: int) -> None:
        """A process runs another program since then: its code is looked at at once, all else at `executed()`."""
        process = self.by_pid.get(pid)
        if process is None and self._members.hold(pid):
            with contextlib.suppress(TargetError):  # it has ended meanwhile
                process = self.watch(pid)
        if process is not None:
            process.since_ns = time_ns
        if process is None or self.code is None or self.gone.has(pid):
            return
        self._began_s = time.monotonic()
        self.code.look_at(pid, time_ns)
        process.state = State.CHANGING
        self._tell_kernel(process)

    def executed(self, pid: Pid, tid: Tid, time_ns: int, has_replaced: bool = False) -> None:
        """A process runs another program since then; stacks from before were taken. has_replaced: and a further one."""
        process = self.by_pid.get(pid)
        if process is None:
            return
        if process.interpreter is not None:
            self._rows.make()  # one of the program before
        process.interpreter, process.note, process.is_unread = None, "", False
        process.suspected_until_ns, process.rank, process.given_name = 0, None, ""
        self.naming.forget(process)
        process.codes = ProcessCodes(process.index, process.read_code)
        if has_replaced or self.gone.has(pid):
            process.close()
            if not has_replaced:
                process.command_line = process.command_line if pid == self._launched else []  # of the program before
                self._has_found(process, ENDED)
            return
        process.open_memory()
        self._began_s = time.monotonic()
        process.take_name()
        self.threads.rename(tid, tasks.thread_name(pid, tid))
        self._look_at(process, time_ns)
        self._tell_kernel(process)

    def asked(self, pid: Pid) -> None:
        """The kernel side met a process it knows too little of: new, or with code at an unknown address."""
        process = self.by_pid.get(pid)
        if process is None or process.state is State.KERNEL_THREAD or self.gone.has(pid):
            return
        if process.state is State.UNSEEN:
            self._look_at(process)
            self._tell_kernel(process)
        elif not self._look_again(process) and process.state is State.KNOWN:
            process.state = State.ASKED
            process.until_s = max(time.monotonic() + _ASKED_S, process.rests_until_s)

    def remapped(self, mapped: Mapping[Pid, Sequence[MappingEvent]]) -> None:
        """These processes mapped code: perhaps an interpreter. Without events: at a time that is not known."""
        for pid, events in mapped.items():
            process = self.by_pid.get(pid)
            if process is None or process.state is State.UNSEEN or self.code is None or self.gone.has(pid):
                continue
            self.code.mapped.setdefault(pid, []).extend(events)
            makes_code = bool(events) and not any(event.is_file for event in events) and self._makes_code(process)
            if not makes_code and process.look_s < _LONG_LOOK_S:
                self._look_again(process)

    def ended(self, pid: Pid, time_ns: int, name: str) -> None:
        """The first thread of a process was gone then, and mostly the process; its pid may be another's by now.

        It is not where another thread has called execve, which goes on under its tid. name: its last comm.
        """
        process = self.by_pid.get(pid)
        is_another = process is not None and time_ns < process.since_ns
        self.gone.followed(pid)
        if is_another or lives(pid):
            return
        if process is not None and name and name != process.name:
            process.name = name
            self._rows.changed(process)
        self._forget(pid)

    def _forget(self, pid: Pid) -> None:
        process = self.by_pid.pop(pid, None)
        if process is not None:
            process.close()
            process.codes.forget()
            self.naming.forget(process)
        if self.code is not None:
            self.code.forget(pid)

    def follow_time(self) -> None:
        """Looks again at processes that make code or whose interpreter was still starting; lets the kernel side ask."""
        now = time.monotonic()
        for process in list(self.by_pid.values()):
            if self.code is not None and process.pid in self.code.mapped and process.is_rested(now):
                self._look_again(process)
            if process.state is State.ASKED and process.until_s < now:
                process.state = State.KNOWN
                self._tell_kernel(process)
            elif process.state is State.STARTING and (process.look_s < _LONG_LOOK_S or process.is_rested(now)):
                with process.being_looked_at():
                    is_changed = self.code is not None and self.code.look_at(process.pid)
                    self._detect(process)
                if process.until_s < now:
                    process.state = State.KNOWN
                if process.state is State.KNOWN:
                    self._newly_known[process.pid] = process
                if process.state is State.KNOWN or is_changed:
                    self._tell_kernel(process)

    def name_threads(self) -> None:
        """By what their programs call them, in processes whose turn it is."""
        self.naming.look_at(self.by_pid.values())

    def refresh_names(self, is_over: Callable[[], bool]) -> None:
        """Processes and threads name themselves after their birth; takes the names they have now, until it is over."""
        for process in self.by_pid.values():
            if is_over():
                break
            self.naming.look_at((process,), at_once=True)
            self._name(process)
            for tid in tasks.list_threads(process.pid):
                self.threads.rename(tid, tasks.thread_name(process.pid, tid))

    def living(self) -> list[Process]:
        """Those that have not ended; asked of /proc, as events of ends may have been lost."""
        return [process for pid, process in self.by_pid.items() if lives(pid)]

    def take_newly_known(self, later: Sequence[Process] = ()) -> list[Process]:
        """Those whose threads may have begun to sleep before their stacks could be walked; `later`: the next ones."""
        found, self._newly_known = self._newly_known, {process.pid: process for process in later}
        return [process for pid, process in found.items() if self.by_pid.get(pid) is process]

    def write_new(self, sink: Sink) -> None:
        """What the recording does not have yet, of threads too."""
        self._rows.write_new(sink)
        self.threads.write_new(sink)

    def close(self) -> None:
        """Closes the processes' memory."""
        for process in self.by_pid.values():
            process.close()

    # --- one process

    def _meet(self, pid: Pid, command: tuple[str, ...] = (), interpreter_of: InterpreterOf | None = None) -> Process:
        if not tasks.list_living_threads(pid):
            raise TargetError(f"process {pid} ended before anything was seen")
        state = State.UNSEEN if self._watches_all else State.KNOWN
        if self._watches_all and tasks.is_kernel_thread(pid):
            state = State.KERNEL_THREAD
        process = self._add(Process(self._count, pid, state=state, stack_start=tasks.stack_start(pid)))
        if command:
            process.name, process.command_line, self._launched = command_name(command), list(command), pid
            self._rows.changed(process)
        elif not self._watches_all:
            self._look_at(process)
        elif interpreter_of is not None and (found := interpreter_of(pid)) is not None:
            process.state = State.STARTING
            self._has_found(process, found)
        return process

    def _add(self, process: Process, is_gone: bool = False) -> Process:
        self._count += 1
        self.by_pid[process.pid] = process
        if is_gone:
            self._rows.changed(process)
            return process
        if process.state is not State.KERNEL_THREAD:
            process.open_memory()
        self._name(process)
        return process

    def _fork(self, pid: Pid, parent: Process, is_gone: bool) -> Process:
        child = Process(self._count, pid, 0, parent.name, parent.command_line, parent.state, parent.until_s)
        child.interpreter, child.note, child.is_unread = parent.interpreter, parent.note, parent.is_unread
        child.rank, child.codes = parent.rank, parent.codes.forked(child.index, child.read_code)
        child.parent_pid = int(parent.pid)
        # It runs what its parent runs now, or ran when it ended without having been looked at.
        if child.state is State.CHANGING or (child.note == ENDED.reason and not is_gone):
            child.interpreter, child.state = None, State.STARTING
            child.until_s = time.monotonic() + _STARTING_S
        self._add(child, is_gone)
        if child.interpreter is not None:
            self.naming.forked(child, parent)
        return child

    def _look_at(self, process: Process, from_ns: int = 0) -> None:
        """For the first time, or after an exec."""
        process.state, process.until_s = State.STARTING, time.monotonic() + _STARTING_S
        if self.code is not None:
            self.code.look_at(process.pid, from_ns)
        self._detect(process)

    def _makes_code(self, process: Process) -> bool:
        found = self.code.map_of.get(process.pid) if self.code else None
        return found is not None and found.has_memory

    def _look_again(self, process: Process) -> bool:
        """Whether the mappings are others than before, which they are since the first of those it has told."""
        with process.being_looked_at():
            is_changed = self.code is not None and self.code.look_again(process.pid)
        if not is_changed:
            return False
        if process.state in (State.KNOWN, State.ASKED, State.STARTING):
            process.state = State.KNOWN
            if process.interpreter is None:  # it may be just starting
                process.state, process.until_s = State.STARTING, time.monotonic() + _STARTING_S
                self._detect(process)
        self._tell_kernel(process)
        return True

    def _detect(self, process: Process) -> None:
        """Looks for its interpreter; then a STARTING process is KNOWN, unless it is worth waiting for one."""
        if process.memory is None:
            process.open_memory()
        try:
            found = find_interpreter(process.pid, process.memory, self._without_runtime)
        except TargetError as error:
            found = why_not(error)
        self._has_found(process, found)

    def _has_found(self, process: Process, found: Interpreter | NotPython) -> None:
        waits = False
        if isinstance(found, NotPython):
            process.note, process.is_unread = found.reason, found.is_unread
            # One that may yet be loaded is seen when it is mapped.
            waits = found.retry or (found.may_load_one and self.code is None)
        else:
            process.interpreter, process.note, process.is_unread = found, "", False
            self._newly_known[process.pid] = process
        if process.state is State.STARTING and not waits:
            process.state = State.KNOWN
        self._rows.changed(process)

    def _tell_kernel(self, process: Process, is_new: bool = False) -> None:
        code_map = self.code.map_of.get(process.pid) if self.code else None
        mappings = (code_map.index, len(code_map.rows), code_map.generation) if code_map else None
        record = process.kernel_record(self._follow_children, mappings, self._makes_code(process))
        self._tables.set_process(process.pid, record, is_new)

    def _name(self, process: Process) -> None:
        process.take_name()
        self._rows.changed(process)
