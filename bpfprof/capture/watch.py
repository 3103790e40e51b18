"""Bringing the kernel side up: from here on nothing of the targets is missed.

This comes first in a recording and imports nothing that takes long; the session, which drains the buffers, follows
while the kernel side already works.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING

from bpfprof import abi
from bpfprof.capture.first_look import FirstLook
from bpfprof.capture.launched import LaunchedCommand
from bpfprof.capture.options import CaptureOptions
from bpfprof.capture.processes import Processes
from bpfprof.capture.targets import Targets
from bpfprof.code.background import URGENT
from bpfprof.dataclass import dataclass
from bpfprof.kernel.attach import Attachments
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.kernel.mapping_events import MappingEvents
from bpfprof.model.ids import Pid
from bpfprof.proc import tasks
from bpfprof.proc.confinement import keep_only
from bpfprof.proc.privilege import OTHER_USERS, Capability, missing
from bpfprof.proc.reader import reader

if TYPE_CHECKING:
    from bpfprof.capture.library_calls import LibraryCalls
    from bpfprof.code.files import CodeFile, CodeFiles
    from bpfprof.code.maps import NativeCode

# How long a recording may wait for unwind tables before it begins; the rest are made while it runs. Without the time in
# which those who make them got no CPU, on a machine that is busy with other things; with it no longer than the second.
_TABLES_WAIT_S, _LONGEST_WAIT_S = 2.0, 6.0
_TABLES_TURN_S = 0.05
# How long targets are looked at before programs are loaded, and in all: meanwhile, and after that if it is not over.
# Some 70 processes, 50 of them Python, take 0.5 to 1.2 s; of a host with more the rest are looked at as they are met.
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.4, 2.5


@dataclass(frozen=True)
class TablesWait:
    """What is waited for before a recording begins: files whose unwind tables were not there."""

    begin_s: float  # time.monotonic()
    files: list[CodeFile]
    is_over: bool = False

    @property
    def left(self) -> list[CodeFile]:
        return [file for file in self.files if not file.is_ready]

    @property
    def read(self) -> list[CodeFile]:
        return [file for file in self.files if file.is_ready]


@dataclass
class Watch:
    """Targets being watched by the kernel side. start_ns: CLOCK_MONOTONIC when that began; 0: not yet."""

    options: CaptureOptions
    kernel: KernelSide
    targets: Targets
    processes: Processes
    code: NativeCode | None  # where code is, for native and kernel frames
    mapping_events: MappingEvents | None
    first_look: FirstLook
    first_look_until_s: float  # time.monotonic()
    calls: LibraryCalls | None = None
    start_ns: int = 0
    attachments: Attachments = field(default_factory=Attachments)
    uncounted_percent: dict[str, int] = field(default_factory=dict)  # of events, known at the end
    is_launched: bool = False
    _command: LaunchedCommand | None = None  # waits to be released
    _names: list[str] = field(default_factory=list)  # of the targets, which may end any moment

    @classmethod
    def of(cls, options: CaptureOptions, kernel: KernelSide, targets: Targets) -> Watch:
        """A watch that has not begun, but makes the targets' unwind tables while programs are still being compiled."""
        code = mapping_events = None
        if options.native or options.kernel or options.watches_all:
            # Imported now: it takes a while, and without native frames it is not needed.
            from bpfprof.code.maps import NativeCode

            code = NativeCode.start(kernel.tables, options.table_memory_mb << 20)
        unwound = code if options.native else None  # else kernel frames only
        if unwound is not None:
            mapping_events = MappingEvents.open()
        begin_s = time.monotonic()
        chosen = tasks.list_processes() if options.watches_all else [*targets.pids, *targets.members.list()]
        first_look = FirstLook.of(unwound, set(chosen) - {Pid(os.getpid()), reader().child_pid}, options.watches_all)
        first_look.go_on(begin_s + _FIRST_LOOK_S)
        members, follows = targets.members, options.follow_children
        processes = Processes(kernel.tables, unwound, follows, options.watches_all, members)
        until_s = begin_s + _LONGEST_LOOK_S
        calls = None
        if options.counts_calls:
            from bpfprof.capture.library_calls import LibraryCalls

            calls = LibraryCalls(kernel)
        return cls(options, kernel, targets, processes, code, mapping_events, first_look, until_s, calls)

    def start(
        self, command: LaunchedCommand | None = None, on_wait: Callable[[TablesWait], bool] = lambda wait: True
    ) -> None:
        """Attaches all and adds the targets; a command waits for `release()`. Raises UnsupportedError, TargetError.

        on_wait: called while unwind tables are made, and once more after that; when false, no longer is waited.
        """
        if self.code is not None and command is None:
            self.first_look.meet(self.code)
        self.first_look.go_on(self.first_look_until_s, lambda: self.kernel.is_loading)
        programs = self.kernel.programs()
        if self.calls is not None:
            self.calls.load()
        limit = self.options.max_switches
        interval_ns = 1_000_000_000 // limit if limit else 0
        self.kernel.tables.set_config(_config_flags(self.options), 1000 * self.options.min_block_us, interval_ns)
        if self.code is not None and command is None:
            self._await_tables(self.code.files, on_wait)
            self.code.files.leaves_unmet = False
        self.attachments.attach_tracepoints(programs)
        if command is None and not self.options.watches_all:
            self.processes.meet([*self.targets.pids, *self.targets.members.list()])
        self.start_ns = time.monotonic_ns()  # from here on all is fast: who is born and ends meanwhile is not seen
        for pid in self.targets.pids if command is None else ():
            process = self.processes.watch(pid)
            self._names.append(f"{process.name} ({pid})")
            if self.options.follow_children:
                self.processes.watch_children(pid)
        if self.options.watches_all:
            self.processes.watch_all(self.first_look.interpreter)
        self.processes.watch_members(at_once=True)
        self.probe_libraries()
        if self.options.mode != "offcpu":
            self.attachments.attach_clock(programs, self.options.rate_hz)
        for number, name in enumerate(self.options.events):
            program = self.kernel.event_program(number)
            self.attachments.attach_event(name, program, self.options.event_period)
        self._command, self.is_launched = command, command is not None

    def probe_libraries(self) -> None:
        """Those that were mapped since the last time, if their calls are to be counted."""
        if self.calls is not None and self.code is not None:
            self.calls.probe(self.code.files.files)

    def _await_tables(self, files: CodeFiles, on_wait: Callable[[TablesWait], bool]) -> None:
        wait = TablesWait(time.monotonic(), files.unmade())
        goes_on = bool(wait.files)
        while goes_on:
            turn_end_s = time.monotonic() + _TABLES_TURN_S
            if not self.first_look.go_on(turn_end_s):
                files.wait(turn_end_s - time.monotonic())
            known = {file.number for file in wait.files}
            wait.files.extend(file for file in files.unmade() if file.number not in known)
            passed_s = time.monotonic() - wait.begin_s
            is_time_over = passed_s >= min(_LONGEST_WAIT_S, _TABLES_WAIT_S + files.background.starved_s())
            goes_on = bool(wait.left) and not is_time_over and on_wait(wait)
        on_wait(replace(wait, is_over=True))

    def own_cpu_s(self) -> float:
        """CPU time of bpfprof, with what works for it."""
        return time.process_time() + reader().cpu_s()

    def keep_only(self, kept: Sequence[Capability]) -> None:
        """Gives up the other capabilities, once nothing has to be loaded any more. A command was forked before."""
        keep_only(kept)
        if self.code is not None:
            for thread in self.code.files.threads:
                thread.add(URGENT, partial(keep_only, kept))  # they are a thread's own

    def release(self) -> None:
        """Lets a launched command begin, now that somebody looks: its account begins here, as a thread's at birth.

        Raises LaunchError when it cannot be run.
        """
        command, self._command = self._command, None
        if command is not None:
            process = self.processes.watch(command.pid, command.command)
            self._names.append(f"{process.name} ({command.pid})")
            command.release()

    def stop(self) -> int:
        """Every thread stays as it is from now on; detaches. Returns when that was, CLOCK_MONOTONIC nanoseconds."""
        self.kernel.tables.set_config(int(abi.ConfigFlags["BP_CONFIG_STOPPED"]))
        end_ns = time.monotonic_ns()
        self.uncounted_percent = self.attachments.uncounted_percent()
        self.attachments.close()
        return end_ns

    def close(self) -> None:
        """Detaches and gives everything back; safe at any point and more than once."""
        self.attachments.close()
        if self.calls is not None:
            self.calls.close()
        self.processes.close()
        if self.mapping_events is not None:
            self.mapping_events.close()
        if self.code is not None:
            self.code.files.close()
        self.targets.close()
        self.kernel.close()

    def describe(self) -> str:
        """The targets, for a line on the terminal."""
        if self.options.watches_all:
            return "every process"
        return ", ".join([*self._names, *self.targets.members.names])

    def notes(self) -> list[str]:
        """What the user should know of the targets: those without Python frames and why."""
        if self.options.watches_all or self.targets.members.cgroups:
            names = " and ".join(missing(OTHER_USERS))
            return [f"without {names} programs of other users are recorded without names"] if names else []
        of_note: dict[str, list[str]] = {}
        for process in self.processes.by_pid.values():
            if process.note:
                of_note.setdefault(process.note, []).append(f"process {process.pid} ({process.name})")
        return [
            f"{who[0]}{f' and {len(who) - 1:,} more' if who[1:] else ''}: {note}; "
            f"{'their' if who[1:] else 'its'} threads and waits are recorded without Python frames"
            for note, who in of_note.items()
        ]


def _config_flags(options: CaptureOptions) -> int:
    flags = abi.ConfigFlags
    chosen = {
        flags["BP_CONFIG_ON_CPU_STACKS"]: options.mode != "offcpu",
        flags["BP_CONFIG_OFF_CPU_STACKS"]: options.mode != "cpu",
        flags["BP_CONFIG_NATIVE"]: options.native,
        flags["BP_CONFIG_KERNEL"]: options.kernel,
        flags["BP_CONFIG_ALL_PROCESSES"]: options.watches_all,
        flags["BP_CONFIG_ALL_EXECS"]: bool(options.cgroups or options.containers),
        flags["BP_CONFIG_WAKERS"]: options.wakers and options.mode != "cpu",
    }
    return sum(int(flag) for flag, is_chosen in chosen.items() if is_chosen)
