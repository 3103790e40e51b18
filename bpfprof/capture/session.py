"""One recording from start to end: kernel side up, drain, write, kernel side down."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bpfprof import __version__, abi
from bpfprof.capture import normalize
from bpfprof.capture.options import CaptureOptions
from bpfprof.capture.stacks import StackTable
from bpfprof.capture.stop import StopRequest
from bpfprof.capture.targets import LaunchedCommand, Targets
from bpfprof.capture.tracker import Tracker
from bpfprof.cpython.code_objects import CodeObject, Unresolved
from bpfprof.errors import TargetError
from bpfprof.kernel.attach import Attachments
from bpfprof.kernel.events import RingBuffer
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.recording.writer import RecordingWriter

# How often the buffers are drained: they hold two seconds of 50,000 switches a second. Sooner where something new must
# be read from the target while it is still there.
_TICK_S, _SOON_TICK_S, _DETECTING_TICK_S = 0.2, 0.05, 0.02
_MANY_EVENTS = 20_000
_PRIORITY = -10
_TOTALS_EVERY_S = 2.0


@dataclass(slots=True)
class Progress:
    """What the live line shows."""

    elapsed_s: float = 0.0
    sample_count: int = 0
    wait_count: int = 0
    thread_count: int = 0
    lost_count: int = 0
    own_cpu_s: float = 0.0


@dataclass(slots=True)
class Session:
    """A recording under way. `start()`, `run()`, `finish()`, and `close()` whatever happened."""

    options: CaptureOptions
    kernel: KernelSide
    writer: RecordingWriter
    progress: Progress = field(default_factory=Progress)
    _attachments: Attachments = field(default_factory=Attachments)
    _stacks: StackTable = field(default_factory=StackTable)
    _is_urgent: bool = True  # the next drain should be soon
    _start_ns: int = 0
    _own_cpu_at_start_s: float = 0.0
    _next_totals_s: float = 0.0
    _events: RingBuffer = field(init=False)
    _stack_records: RingBuffer = field(init=False)
    _tracker: Tracker = field(init=False)
    _targets: Targets = field(init=False)

    def start(self, targets: Targets, command: LaunchedCommand | None = None) -> None:
        """Brings the kernel side up; from here on every event of the targets is seen."""
        self._targets = targets
        tables = self.kernel.tables
        self._events = RingBuffer(tables.fds["events"], abi.CONSTANTS["BP_EVENT_RING_BYTES"])
        self._stack_records = RingBuffer(tables.fds["stacks"], abi.CONSTANTS["BP_STACK_RING_BYTES"])
        self._tracker = Tracker(tables, self._stacks, self.options.follow_children)
        tables.set_config(_config_flags(self.options.mode))
        programs = self.kernel.programs()
        self._attachments.attach_tracepoints(programs)
        self._start_ns = time.monotonic_ns()
        for pid in targets.pids:
            self._tracker.watch(pid, about_to_exec=command is not None)
        if self.options.mode != "offcpu":
            self._attachments.attach_clock(programs, self.options.event, self.options.rate_hz)
        if command is not None:
            command.release()
        self._own_cpu_at_start_s = _own_cpu_s()
        self._write_start()
        for process in list(self._tracker.processes.values()):
            self._tracker.look_at_sleepers(process)

    def describe(self) -> str:
        """The targets, for a line on the terminal."""
        named = [self._tracker.processes[pid] for pid in self._targets.pids]
        return ", ".join(f"{process.name} ({process.pid})" for process in named)

    def notes(self) -> list[str]:
        """What the user should know of the targets: those without Python frames and why."""
        return [
            f"process {process.pid} ({process.name}): {process.note}; "
            "its threads and waits are recorded without Python frames"
            for process in self._tracker.processes.values()
            if process.note
        ]

    def run(self, on_tick: Callable[[Progress], None], stop: StopRequest) -> None:
        """Drains until the duration is over, the targets have ended, or a stop is requested."""
        deadline_s = self._start_ns / 1e9 + (self.options.duration_s or float("inf"))
        ended = False
        # It takes a hundredth of a CPU, but on a busy machine it must get it before the buffers are full.
        usual_priority = _set_priority(_PRIORITY)
        while not ended and not stop.requested and time.monotonic() < deadline_s:
            tick_s = _SOON_TICK_S if self._is_urgent else _TICK_S
            tick_s = _DETECTING_TICK_S if self._tracker.is_detecting else tick_s
            ended = self._targets.all_ended(max(0.0, min(tick_s, deadline_s - time.monotonic())))
            self._drain()
            on_tick(self.progress)
        _set_priority(usual_priority)

    def finish(self) -> None:
        """Takes the kernel side down and writes the end of the recording."""
        self._tracker.refresh_names()
        self.kernel.tables.set_config(int(abi.ConfigFlags["BP_CONFIG_STOPPED"]))
        end_ns = time.monotonic_ns()
        self._attachments.close()
        self._drain()
        self._write_totals(end_ns, is_end=True)
        if not self._tracker.thread_index:
            raise TargetError("the target ended before anything was seen")
        counters = self._counters()
        self.writer.write(
            "end",
            {
                "end_ns": end_ns,
                "own_cpu_ns": int(1e9 * (_own_cpu_s() - self._own_cpu_at_start_s)),
                "lost": {abi.status_text(index): count for index, count in counters.items()},
                "codes_unverified": self._stacks.unverified_count,
                "codes_replaced": self._stacks.changed_count,
            },
        )

    def close(self) -> None:
        """Detaches and gives everything back; safe at any point and more than once."""
        self._attachments.close()
        if hasattr(self, "_tracker"):
            self._tracker.close()
        if hasattr(self, "_targets"):
            self._targets.close()
        self.kernel.close()

    # --- one turn of the loop

    def _drain(self) -> None:
        events = self._events.drain_fixed(abi.EVENT_DTYPE)
        self._is_urgent = len(events) > _MANY_EVENTS
        # After the events: a stack is sent before the event that refers to it, so each is here now.
        records = list(self._stack_records.drain_records())
        births = self._follow_births(events)
        self._tracker.detect_started()
        self._add_stacks(records, events[events["kind"] == abi.EventKind["BP_EVENT_EXEC"]])
        self._write_tables()
        threads = normalize.thread_indices(events["tid"], self._tracker.thread_index)
        for position, tid, before in reversed(
            births
        ):  # a tid that was given again: what came before is the old thread's
            threads[:position][events["tid"][:position] == tid] = before
        self._write_events(events, threads)
        if time.monotonic() >= self._next_totals_s:
            self._next_totals_s = time.monotonic() + _TOTALS_EVERY_S
            self._write_totals(time.monotonic_ns())
            self.progress.lost_count = sum(self._counters().values())
        self._update_progress()

    def _follow_births(self, events: npt.NDArray[np.void]) -> list[tuple[int, int, int]]:
        """(position of the event, tid, index the tid had before or -1) of each thread born."""
        births = []
        for position in np.flatnonzero(events["kind"] == abi.EventKind["BP_EVENT_FORK"]).tolist():
            tid = int(events["tid"][position])
            births.append((position, tid, self._tracker.thread_index.get(tid, -1)))
            self._tracker.born(events[position])
        return births

    def _add_stacks(self, records: list[memoryview], execs: npt.NDArray[np.void]) -> None:
        for event in execs:  # stacks from before an exec belong to the program before
            before = [record for record in records if _stack_time_ns(record) < int(event["time_ns"])]
            records = records[len(before) :]
            self._stacks.add_records(before, self._tracker.codes_of)
            self._tracker.executed(event)
        self._stacks.add_records(records, self._tracker.codes_of)

    def _write_events(self, events: npt.NDArray[np.void], threads: npt.NDArray[np.int64]) -> None:
        known = threads >= 0
        for kind in ("BP_EVENT_SAMPLE", "BP_EVENT_WAIT", "BP_EVENT_EXIT"):
            chosen = known & (events["kind"] == abi.EventKind[kind])
            if not chosen.any():
                continue
            rows, indices = events[chosen], threads[chosen]
            if kind == "BP_EVENT_SAMPLE":
                self.progress.sample_count += len(rows)
                self.writer.write("samples", arrays={"rows": normalize.samples(rows, indices, self._stacks)})
            elif kind == "BP_EVENT_WAIT":
                self.progress.wait_count += len(rows)
                sleeps = self._tracker.first_sleeps
                self.writer.write("waits", arrays={"rows": normalize.waits(rows, indices, self._stacks, sleeps)})
            else:
                self.writer.write("totals", arrays={"rows": normalize.exits(rows, indices)})

    def _write_tables(self) -> None:
        processes, threads = self._tracker.take_rows()
        if processes:
            self.writer.write("processes", {"rows": processes})
        if threads:
            self.writer.write("threads", {"rows": threads})
        codes, arrays = self._stacks.take_new()
        self._is_urgent |= bool(codes)
        if codes:
            rows = [code_row(process, code) for process, code in codes]
            tables = [code.linetable if isinstance(code, CodeObject) else b"" for _, code in codes]
            ends = np.cumsum([len(table) for table in tables], dtype=np.uint64)
            blob = np.frombuffer(b"".join(tables), np.uint8)
            self.writer.write("codes", {"rows": rows}, {"linetable_ends": ends, "linetables": blob})
        if arrays:
            self.writer.write("stacks", arrays=arrays)

    def _write_totals(self, time_ns: int, is_end: bool = False) -> None:
        tids, records = self.kernel.tables.threads()
        threads = normalize.thread_indices(tids, self._tracker.thread_index)
        known = (threads >= 0) & (records["state"] != abi.ThreadState["BP_THREAD_DEAD"])
        sleeps = self._tracker.first_sleeps
        rows = normalize.totals(records[known], threads[known], time_ns, self._stacks, sleeps)
        if is_end:
            self._tracker.add_running_time(rows, records[known], tids[known])
        self.writer.write("totals", arrays={"rows": rows})
        self.progress.thread_count = len(rows)

    def _write_start(self) -> None:
        host = os.uname()
        self.writer.write(
            "start",
            {
                "bpfprof_version": __version__,
                "start_ns": self._start_ns,
                "started_unix_ns": time.time_ns() - (time.monotonic_ns() - self._start_ns),
                "host_name": host.nodename,
                "kernel_release": host.release,
                "rate_hz": self.options.rate_hz,
                "event": self.options.event,
                "mode": self.options.mode,
                "target_pids": list(self._targets.pids),
                "status_texts": {int(status): abi.status_text(status) for status in abi.Status},
            },
        )
        self._write_tables()

    def _counters(self) -> dict[int, int]:
        counts = self.kernel.tables.counters()
        first = int(abi.Status["BP_LOST_FIRST"])
        counts[abi.Status["BP_LOST_THREAD_TABLE_FULL"]] += self._tracker.unwatched_count
        return {index: int(counts[index]) for index in range(first, len(counts)) if counts[index]}

    def _update_progress(self) -> None:
        self.progress.elapsed_s = (time.monotonic_ns() - self._start_ns) / 1e9
        self.progress.own_cpu_s = _own_cpu_s() - self._own_cpu_at_start_s


def code_row(process: int, code: CodeObject | Unresolved) -> list[Any]:
    """[process, filename, qualified name, first line, reason]; the reason is "" for one that was read."""
    if isinstance(code, CodeObject):
        return [process, code.filename, code.qualname, code.first_line, ""]
    return [process, "", "", 0, code.reason]


def _config_flags(mode: str) -> int:
    on_cpu, off_cpu = abi.ConfigFlags["BP_CONFIG_ON_CPU_STACKS"], abi.ConfigFlags["BP_CONFIG_OFF_CPU_STACKS"]
    return int({"both": on_cpu | off_cpu, "cpu": on_cpu, "offcpu": off_cpu}[mode])


def _stack_time_ns(record: memoryview) -> int:
    return int(np.frombuffer(record, abi.STACK_DTYPE, 1)["time_ns"][0])


def _set_priority(nice: int) -> int:
    """Sets the nice value where that is allowed; returns the one before."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    return before


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
