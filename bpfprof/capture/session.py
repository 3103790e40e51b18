"""Recording what is being watched: drain the buffers, name what is new, write, until the end."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bpfprof import __version__, abi
from bpfprof.abi.dtypes import EVENT_DTYPE, STACK_DTYPE
from bpfprof.capture import normalize
from bpfprof.capture.descriptors import DescriptorKinds
from bpfprof.capture.stacks import StackTable
from bpfprof.capture.stop import StopRequest
from bpfprof.capture.tracker import exec_ns
from bpfprof.capture.watch import Watch
from bpfprof.cpython.code_objects import CodeObject, Unresolved
from bpfprof.errors import TargetError
from bpfprof.kernel.events import RingBuffer, watched_threads
from bpfprof.model.ids import Pid, Tid
from bpfprof.recording.writer import RecordingWriter

_TICK_NS = 10_000_000  # CONFIG_HZ is 100 at least
# How often the buffers are drained: they hold two seconds of 50,000 switches a second. Sooner where something new must
# be read from the target while it is still there.
_TICK_S, _SOON_TICK_S, _YOUNG_TICK_S = 0.25, 0.05, 0.02
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
    own_cpu_at_start_s: float = 0.0

    @property
    def own_cpu_s(self) -> float:
        """CPU time of this process since the recording began."""
        return own_cpu_s() - self.own_cpu_at_start_s


class Session:
    """A recording under way: `begin()`, `run()`, `finish()`."""

    def __init__(self, watch: Watch, writer: RecordingWriter) -> None:
        tables = watch.kernel.tables
        self.progress = Progress(own_cpu_at_start_s=own_cpu_s())
        self._watch = watch
        self._tracker = watch.tracker
        self._writer = writer
        self._tables = tables
        self._stacks = self._tracker.stacks = StackTable()
        self._events = RingBuffer(tables.fds["events"], abi.CONSTANTS["BP_EVENT_RING_BYTES"])
        self._stack_records = RingBuffer(tables.fds["stacks"], abi.CONSTANTS["BP_STACK_RING_BYTES"])
        watch.targets.wake_on(tables.fds["events"])
        self._descriptors = DescriptorKinds()
        self._is_urgent = True  # the next drain should be soon
        self._next_totals_s = 0.0

    def begin(self) -> None:
        """Writes the start and looks at threads that sleep already."""
        self._write_start()
        for process in list(self._tracker.processes.values()):
            self._tracker.look_at_sleepers(process)

    def run(self, on_tick: Callable[[Progress], None], stop: StopRequest) -> None:
        """Drains until the duration is over, the targets have ended, or a stop is requested."""
        deadline_s = self._watch.start_ns / 1e9 + (self._watch.options.duration_s or float("inf"))
        ended = False
        # It takes a hundredth of a CPU, but on a busy machine it must get it before the buffers are full.
        usual_priority = _set_priority(_PRIORITY)
        while not ended and not stop.requested and time.monotonic() < deadline_s:
            tick_s = _SOON_TICK_S if self._is_urgent else _TICK_S
            tick_s = _YOUNG_TICK_S if self._tracker.is_young else tick_s
            ended = self._watch.targets.all_ended(max(0.0, min(tick_s, deadline_s - time.monotonic())))
            self._drain()
            on_tick(self.progress)
        _set_priority(usual_priority)

    def finish(self) -> None:
        """Takes the kernel side down and writes the end of the recording."""
        self._tracker.refresh_names()
        end_ns = self._watch.stop()
        self._drain()
        self._write_totals(end_ns, is_end=True)
        if not self._tracker.thread_index:
            raise TargetError("the target ended before anything was seen")
        counters = self._counters()
        self._writer.write(
            "end",
            {
                "end_ns": end_ns,
                "own_cpu_ns": int(1e9 * self.progress.own_cpu_s),
                "lost": {abi.status_text(index): count for index, count in counters.items()},
                "codes_unverified": self._stacks.unverified_count,
                "codes_replaced": self._stacks.changed_count,
            },
        )

    # --- one turn of the loop

    def _drain(self) -> None:
        events = self._events.drain_fixed(EVENT_DTYPE)
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
            pid, parent = Pid(int(events["tgid"][position])), Pid(int(events["args"][position][0]))
            self._tracker.born(pid, Tid(tid), parent, int(events["time_ns"][position]))
        return births

    def _add_stacks(self, records: list[memoryview], execs: npt.NDArray[np.void]) -> None:
        for event in execs:  # stacks from before an exec belong to the program before
            before = [record for record in records if _stack_time_ns(record) < int(event["time_ns"])]
            records = records[len(before) :]
            self._stacks.add_records(before, self._tracker.codes_of)
            self._tracker.executed(Pid(int(event["tgid"])), Tid(int(event["tid"])))
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
                self._writer.write("samples", arrays={"rows": normalize.samples(rows, indices, self._stacks)})
            elif kind == "BP_EVENT_WAIT":
                self.progress.wait_count += len(rows)
                sleeps = self._tracker.first_sleeps
                waits = normalize.waits(rows, indices, self._stacks, sleeps)
                waits["fd_kind"] = self._descriptors.of_waits(rows["tgid"], waits)
                self._writer.write("waits", arrays={"rows": waits})
            else:
                self._writer.write("totals", arrays={"rows": normalize.exits(rows, indices)})

    def _write_tables(self) -> None:
        processes, threads = self._tracker.take_rows()
        if processes:
            self._writer.write("processes", {"rows": processes})
        if threads:
            self._writer.write("threads", {"rows": threads})
        codes, arrays = self._stacks.take_new()
        self._is_urgent |= bool(codes)
        if codes:
            rows = [code_row(process, code) for process, code in codes]
            tables = [code.linetable if isinstance(code, CodeObject) else b"" for _, code in codes]
            ends = np.cumsum([len(table) for table in tables], dtype=np.uint64)
            blob = np.frombuffer(b"".join(tables), np.uint8)
            self._writer.write("codes", {"rows": rows}, {"linetable_ends": ends, "linetables": blob})
        if arrays:
            self._writer.write("stacks", arrays=arrays)

    def _write_totals(self, time_ns: int, is_end: bool = False) -> None:
        tids, records = watched_threads(self._tables)
        threads = normalize.thread_indices(tids, self._tracker.thread_index)
        known = (threads >= 0) & (records["state"] != abi.ThreadState["BP_THREAD_DEAD"])
        sleeps = self._tracker.first_sleeps
        rows = normalize.totals(records[known], threads[known], time_ns, self._stacks, sleeps)
        rows["fd_kind"] = self._descriptors.of_waits(records["tgid"][known], rows)
        if is_end:
            _add_running_time(rows, records[known], tids[known])
        self._writer.write("totals", arrays={"rows": rows})
        self.progress.thread_count = len(rows)

    def _write_start(self) -> None:
        host = os.uname()
        self._writer.write(
            "start",
            {
                "bpfprof_version": __version__,
                "start_ns": self._watch.start_ns,
                "started_unix_ns": time.time_ns() - (time.monotonic_ns() - self._watch.start_ns),
                "host_name": host.nodename,
                "kernel_release": host.release,
                "rate_hz": self._watch.options.rate_hz,
                "event": self._watch.options.event,
                "mode": self._watch.options.mode,
                "target_pids": list(self._watch.targets.pids),
                "status_texts": {int(status): abi.status_text(status) for status in abi.Status},
            },
        )
        self._write_tables()

    def _counters(self) -> dict[int, int]:
        counts = self._tables.counters()
        first = int(abi.Status["BP_LOST_FIRST"])
        counts[abi.Status["BP_LOST_THREAD_TABLE_FULL"]] += self._tracker.unwatched_count
        return {index: int(counts[index]) for index in range(first, len(counts)) if counts[index]}

    def _update_progress(self) -> None:
        self.progress.elapsed_s = (time.monotonic_ns() - self._watch.start_ns) / 1e9


def code_row(process: int, code: CodeObject | Unresolved) -> list[Any]:
    """[process, filename, qualified name, first line, reason]; the reason is "" for one that was read."""
    if isinstance(code, CodeObject):
        return [process, code.filename, code.qualname, code.first_line, ""]
    return [process, "", "", 0, code.reason]


def _add_running_time(rows: npt.NDArray[np.void], records: npt.NDArray[np.void], tids: npt.NDArray[np.uint32]) -> None:
    """Fills running_ns of rows (TOTAL_DTYPE): how long threads that are on a CPU really ran since they got it."""
    states = abi.ThreadState["BP_THREAD_ON_CPU"], abi.ThreadState["BP_THREAD_UNKNOWN"]
    for position in np.flatnonzero(np.isin(records["state"], states)).tolist():
        now = exec_ns(int(records["tgid"][position]), int(tids[position]))
        open_ns = max(0, int(rows["time_ns"][position]) - int(rows["since_ns"][position]))
        ran = now - int(records["exec_ns"][position]) if now else open_ns
        # The kernel brings its figure up to date at each tick only: less than that is no difference.
        rows["running_ns"][position] = min(max(ran, 0), open_ns) if open_ns - ran > _TICK_NS else open_ns


def _stack_time_ns(record: memoryview) -> int:
    return int(np.frombuffer(record, STACK_DTYPE, 1)["time_ns"][0])


def _set_priority(nice: int) -> int:
    """Sets the nice value where that is allowed; returns the one before."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    return before


def own_cpu_s() -> float:
    """User and system time of this process, seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
