"""Attaching the loaded programs: scheduler and process tracepoints, and the clock of each CPU."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from bpfprof.errors import UnsupportedError
from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.refusals import refusal

# Births and deaths first, so that nothing is missed of a thread that the scheduler's tracepoints then report.
_TRACEPOINTS = ("sched_process_free", "sched_process_fork", "sched_process_exec", "sched_waking", "sched_switch")
# event name -> (perf_event_attr.type, config), include/uapi/linux/perf_event.h
PERF_EVENTS = {
    "cpu-clock": (1, 0),
    "cycles": (0, 0),
    "instructions": (0, 1),
    "cache-references": (0, 2),
    "cache-misses": (0, 3),
    "branches": (0, 4),
    "branch-misses": (0, 5),
}


@dataclass
class Attachments:
    """Everything that is attached; `close()` detaches it."""

    fds: list[int] = field(default_factory=list)

    def attach_tracepoints(self, programs: dict[str, int]) -> None:
        """Scheduler and process events. Raises UnsupportedError naming the tracepoint the kernel refuses."""
        for name in _TRACEPOINTS:
            try:
                self.fds.append(bpf_syscall.raw_tracepoint_open(name, programs[name]))
            except OSError as error:
                raise refusal(f"the raw tracepoint {name}", error) from error

    def attach_clock(self, programs: dict[str, int], event: str, rate_hz: int) -> None:
        """Samples every online CPU at rate_hz. Raises UnsupportedError when the machine lacks the event."""
        event_type, config = PERF_EVENTS[event]
        for cpu in cpus("online"):
            try:
                self.fds.append(bpf_syscall.perf_event_open(event_type, config, rate_hz, cpu, programs["on_cpu"]))
            except PermissionError as error:
                raise refusal(f"the perf event {event}", error) from error
            except OSError as error:
                raise UnsupportedError(
                    f"the event {event} cannot be sampled on this machine ({error.strerror})",
                    "use --event cpu-clock, which needs no hardware counter",
                ) from error

    def close(self) -> None:
        """Detaches everything."""
        while self.fds:
            os.close(self.fds.pop())


def cpus(which: str) -> list[int]:
    """CPU numbers that are "online" or "possible", ascending."""
    with open(f"/sys/devices/system/cpu/{which}") as file:
        ranges = [part.partition("-") for part in file.read().strip().split(",")]
    return [cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)]
