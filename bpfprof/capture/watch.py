"""Bringing the kernel side up: from here on nothing of the targets is missed.

This comes first in a recording and imports nothing that takes long; the session, which drains the buffers, follows
while the kernel side already works.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bpfprof import abi
from bpfprof.capture.launched import LaunchedCommand
from bpfprof.capture.options import CaptureOptions
from bpfprof.capture.processes import Processes
from bpfprof.capture.targets import Targets
from bpfprof.kernel.attach import Attachments
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.kernel.mapping_events import MappingEvents
from bpfprof.proc import tasks
from bpfprof.proc.own_process import usual_priority
from bpfprof.proc.privilege import OTHER_USERS, missing

if TYPE_CHECKING:
    from bpfprof.code.maps import NativeCode

# How long a recording may wait for unwind tables before it begins; large files are made later, while it runs.
_TABLES_WAIT_S = 1.5
# How long mappings are read before; those of a host full of processes are read when each is met.
_FIRST_LOOK_S = 0.4


@dataclass
class Watch:
    """Targets being watched by the kernel side. start_ns: CLOCK_MONOTONIC when that began; 0: not yet."""

    options: CaptureOptions
    kernel: KernelSide
    targets: Targets
    processes: Processes
    code: NativeCode | None  # where code is, for native and kernel frames
    mapping_events: MappingEvents | None
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
            deadline_s = time.monotonic() + _FIRST_LOOK_S
            for pid in tasks.list_processes() if options.watches_all else (*targets.pids, *targets.members.list()):
                if time.monotonic() < deadline_s:
                    unwound.look_at(pid)
        members, follows = targets.members, options.follow_children
        processes = Processes(kernel.tables, unwound, follows, options.watches_all, members)
        return cls(options, kernel, targets, processes, code, mapping_events)

    def start(self, command: LaunchedCommand | None = None) -> None:
        """Attaches all and adds the targets; a command waits for `release()`. Raises UnsupportedError, TargetError."""
        programs = self.kernel.programs()
        limit = self.options.max_switches
        interval_ns = 1_000_000_000 // limit if limit else 0
        self.kernel.tables.set_config(_config_flags(self.options), 1000 * self.options.min_block_us, interval_ns)
        if self.code is not None:
            if command is None:
                self.code.files.background.wait(_TABLES_WAIT_S)
            for thread in (self.code.files.background, self.code.files.naming):
                usual_priority(thread.thread_id)
        self.attachments.attach_tracepoints(programs)
        self.start_ns = time.monotonic_ns()
        for pid in self.targets.pids if command is None else ():
            process = self.processes.watch(pid)
            self._names.append(f"{process.name} ({pid})")
            if self.options.follow_children:
                self.processes.watch_children(pid)
        if self.options.watches_all:
            self.processes.watch_all()
        self.processes.watch_members(at_once=True)
        if self.options.mode != "offcpu":
            self.attachments.attach_clock(programs, self.options.rate_hz)
        for number, name in enumerate(self.options.events):
            program = self.kernel.event_program(number)
            self.attachments.attach_event(name, program, self.options.event_period)
        self._command, self.is_launched = command, command is not None

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
