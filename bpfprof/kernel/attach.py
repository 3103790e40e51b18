"""Attaching the loaded programs: scheduler and process tracepoints, and perf events of each CPU."""

from __future__ import annotations

import os
from dataclasses import field

from bpfprof.dataclass import dataclass
from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.perf_events import CLOCK, EVENTS
from bpfprof.kernel.refusals import refusal

# Births and deaths first, so that nothing is missed of a thread that the scheduler's tracepoints then report.
_TRACEPOINTS = ("sched_process_free", "sched_process_fork", "sched_process_exec", "sched_waking", "sched_switch")

# For each event and CPU, where no period is asked for: a quarter of perf's default; at 3 us a sample 0.3% of a CPU.
_EVENT_RATE_HZ = 997


@dataclass
class Attachments:
    """Everything that is attached; `close()` detaches it."""

    fds: list[int] = field(default_factory=list)
    event_fds: dict[str, list[int]] = field(default_factory=dict)

    def attach_tracepoints(self, programs: dict[str, int]) -> None:
        """Scheduler and process events. Raises UnsupportedError naming the tracepoint the kernel refuses."""
        for name in _TRACEPOINTS:
            try:
                self.fds.append(bpf_syscall.raw_tracepoint_open(name, programs[name]))
            except OSError as error:
                raise refusal(f"the raw tracepoint {name}", error) from error

    def attach_clock(self, programs: dict[str, int], rate_hz: int) -> None:
        """Samples every online CPU at rate_hz. Raises UnsupportedError."""
        self._attach("cpu-clock", CLOCK, programs["on_cpu"], rate_hz)

    def attach_event(self, name: str, program_fd: int, period: int) -> None:
        """Samples one of EVENTS: each `period` of them, 0: as often as is right. Raises UnsupportedError."""
        first = len(self.fds)
        self._attach(name, EVENTS[name], program_fd, _EVENT_RATE_HZ, period)
        self.event_fds[name] = self.fds[first:]

    def _attach(self, name: str, kind: tuple[int, int], program_fd: int, rate_hz: int, period: int = 0) -> None:
        for cpu in cpus("online"):
            try:
                self.fds.append(bpf_syscall.perf_event_open(kind, cpu, program_fd, rate_hz, period))
            except OSError as error:
                raise refusal(f"the perf event {name}", error) from error

    def uncounted_percent(self) -> dict[str, int]:
        """For each event for how much of the time it was not counted: a CPU has so many counters only."""
        percent = {}
        for name, fds in self.event_fds.items():
            enabled_ns, running_ns = map(sum, zip(*map(bpf_syscall.perf_event_times, fds)))
            percent[name] = round(100 * (enabled_ns - running_ns) / max(1, enabled_ns))
        return percent

    def close(self) -> None:
        """Detaches everything."""
        self.event_fds.clear()
        while self.fds:
            os.close(self.fds.pop())


def cpus(which: str) -> list[int]:
    """CPU numbers that are "online" or "possible", ascending."""
    with open(f"/sys/devices/system/cpu/{which}") as file:
        ranges = [part.partition("-") for part in file.read().strip().split(",")]
    return [cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)]
