"""Bringing the kernel side up: from here on nothing of the targets is missed.

This comes first in a recording and imports nothing that takes long; the session, which drains the buffers, follows
while the kernel side already works.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from bpfprof import abi
from bpfprof.capture.options import CaptureOptions
from bpfprof.capture.targets import LaunchedCommand, Targets
from bpfprof.capture.tracker import Tracker
from bpfprof.kernel.attach import Attachments
from bpfprof.kernel.kernel_side import KernelSide


@dataclass(slots=True)
class Watch:
    """Targets being watched by the kernel side. start_ns: CLOCK_MONOTONIC when that began; 0: not yet."""

    options: CaptureOptions
    kernel: KernelSide
    targets: Targets
    tracker: Tracker
    start_ns: int = 0
    _attachments: Attachments = field(default_factory=Attachments)

    @classmethod
    def of(cls, options: CaptureOptions, kernel: KernelSide, targets: Targets) -> Watch:
        """A watch that has not begun."""
        return cls(options, kernel, targets, Tracker(kernel.tables, options.follow_children))

    def start(self, command: LaunchedCommand | None = None) -> None:
        """Attaches everything, adds the targets and lets the command begin. Raises UnsupportedError, TargetError."""
        self.kernel.tables.set_config(_config_flags(self.options.mode))
        programs = self.kernel.programs()
        self._attachments.attach_tracepoints(programs)
        self.start_ns = time.monotonic_ns()
        for pid in self.targets.pids:
            self.tracker.watch(pid, about_to_exec=command is not None)
            if self.options.follow_children:
                self.tracker.watch_children(pid)
        if self.options.mode != "offcpu":
            self._attachments.attach_clock(programs, self.options.event, self.options.rate_hz)
        if command is not None:
            command.release()

    def stop(self) -> int:
        """Every thread stays as it is from now on; detaches. Returns when that was, CLOCK_MONOTONIC nanoseconds."""
        self.kernel.tables.set_config(int(abi.ConfigFlags["BP_CONFIG_STOPPED"]))
        end_ns = time.monotonic_ns()
        self._attachments.close()
        return end_ns

    def close(self) -> None:
        """Detaches and gives everything back; safe at any point and more than once."""
        self._attachments.close()
        self.tracker.close()
        self.targets.close()
        self.kernel.close()

    def describe(self) -> str:
        """The targets, for a line on the terminal."""
        named = [self.tracker.processes[pid] for pid in self.targets.pids]
        return ", ".join(f"{process.name} ({process.pid})" for process in named)

    def notes(self) -> list[str]:
        """What the user should know of the targets: those without Python frames and why."""
        return [
            f"process {process.pid} ({process.name}): {process.note}; "
            "its threads and waits are recorded without Python frames"
            for process in self.tracker.processes.values()
            if process.note
        ]


def _config_flags(mode: str) -> int:
    on_cpu, off_cpu = abi.ConfigFlags["BP_CONFIG_ON_CPU_STACKS"], abi.ConfigFlags["BP_CONFIG_OFF_CPU_STACKS"]
    return int({"both": on_cpu | off_cpu, "cpu": on_cpu, "offcpu": off_cpu}[mode])
