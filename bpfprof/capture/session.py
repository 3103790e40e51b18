"""Recording what is being watched: drain the buffers, name what is new, write, until the end."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bpfprof import __version__, abi
from bpfprof.abi.dtypes import EVENT_DTYPE, STACK_DTYPE
from bpfprof.capture import normalize
from bpfprof.capture.event_rows import EventRows
from bpfprof.capture.numbers import status_texts
from bpfprof.capture.process import TrackedProcess
from bpfprof.capture.stacks import StackTable
from bpfprof.capture.stop import StopRequest
from bpfprof.capture.watch import Watch
from bpfprof.code.namer import Namer
from bpfprof.code.sleeping import native_stack
from bpfprof.cpython.code_objects import CodeObject, Unresolved
from bpfprof.errors import TargetError
from bpfprof.kernel.events import RingBuffer, watched_threads
from bpfprof.kernel.mapping_events import MappingEvent
from bpfprof.model.ids import Pid, Tid
from bpfprof.proc.priority import usual_priority
from bpfprof.proc.tasks import BlockedSyscall
from bpfprof.recording.tables import End, Start
from bpfprof.recording.writer import RecordingWriter

# How often the buffers are drained: they hold two seconds of 50,000 switches a second. Sooner where something new must
# be read from the target while it is still there.
_TICK_S, _SOON_TICK_S, _YOUNG_TICK_S = 0.25, 0.05, 0.02
_COMM = np.dtype(f"S{abi.CONSTANTS['BP_COMM_BYTES']}")
_MANY_EVENTS = 20_000
_SLEEPERS_TOGETHER = 10  # processes
_REPLACED_KEPT_NS = 2_000_000_000
_TOTALS_EVERY_S = 2.0
_LOOKS_EVERY_S = 1.0
_STACK_PID_AT = STACK_DTYPE.fields["tgid"][1]  # type: ignore[index]
_NATIVE_NOT_READY = int(abi.Status["BP_NATIVE_NOT_READY"])


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
        self._stacks = StackTable()
        self._tracker.first_sleeps.stacks = self
        self._namer = Namer(watch.native, watch.options.native_lines) if watch.native else None
        self._events = RingBuffer(tables.fds["events"], abi.CONSTANTS["BP_EVENT_RING_BYTES"])
        self._stack_records = RingBuffer(tables.fds["stacks"], abi.CONSTANTS["BP_STACK_RING_BYTES"])
        watch.targets.wake_on(tables.fds["events"])
        for fd in watch.mapping_events.fds if watch.mapping_events else ():
            watch.targets.wake_on(fd)
        self._rows = EventRows(self._tracker, self._stacks, writer)
        self._is_urgent = True  # the next drain should be soon
        self._drained_s = 0.0
        self._held: list[npt.NDArray[np.void]] = []  # events that were taken and not written
        self._births: list[tuple[int, int, int]] = []  # in them, see _follow_births()
        self._next_totals_s = self._next_looks_s = 0.0

    def begin(self) -> None:
        """Writes the start, looks at threads that sleep already, and lets a launched command begin."""
        self._write_start()
        self._drain()
        for number, process in enumerate(list(self._tracker.processes.values())):
            self._tracker.look_at_sleepers(process)
            if number % _SLEEPERS_TOGETHER == _SLEEPERS_TOGETHER - 1:
                self._drain()  # what is new must be looked at while it is there
        self._watch.release()

    def run(self, on_tick: Callable[[Progress], None], stop: StopRequest) -> None:
        """Drains until the duration is over, the targets have ended, or a stop is requested."""
        deadline_s = self._watch.start_ns / 1e9 + (self._watch.options.duration_s or float("inf"))
        ended = False
        while not ended and not stop.requested and time.monotonic() < deadline_s:
            tick_s = _SOON_TICK_S if self._is_urgent else _TICK_S
            tick_s = _YOUNG_TICK_S if self._tracker.is_young else tick_s
            next_s = min(self._drained_s + tick_s, deadline_s)
            ended = self._watch.targets.all_ended(max(0.0, next_s - time.monotonic()))
            if ended or time.monotonic() >= next_s or self._must_drain():
                self._drain()
                on_tick(self.progress)
            else:
                self._take_events()
        usual_priority()

    def finish(self) -> None:
        """Takes the kernel side down and writes the end of the recording."""
        self._tracker.refresh_names()
        self._next_looks_s = 0.0
        self._look_again_at_sleepers()
        end_ns = self._watch.stop()
        self._drain()
        self._rows.write_totals(end_ns, *watched_threads(self._tables), is_end=True)
        if self._namer is not None:
            self._namer.finish(self._writer)
        if not self._tracker.thread_index:
            raise TargetError("the target ended before anything was seen")
        counters = self._counters()
        end = End(
            end_ns=end_ns,
            own_cpu_ns=int(1e9 * self.progress.own_cpu_s),
            lost={abi.status_text(index): count for index, count in counters.items()},
            codes_unverified=self._stacks.unverified_count,
            codes_replaced=self._stacks.changed_count,
            problems=self._problems(),
        )
        self._writer.write("end", {**end})

    # --- one turn of the loop

    def _must_drain(self) -> bool:
        """Whether something was born whose code must be read while it is there; of a whole machine that is too much."""
        return not self._watch.options.watches_all and self._tables.fds["events"] in self._watch.targets.woken_by

    def _take_events(self) -> None:
        """Looks at what cannot wait: processes that are new, run another program, or mapped code."""
        events = self._events.drain_fixed(EVENT_DTYPE)
        if len(events):
            self._births += self._follow_births(events, sum(map(len, self._held)))
            self._held.append(events)
            for event in events[events["kind"] == abi.EventKind["BP_EVENT_EXEC"]]:
                self._tracker.will_have_executed(Pid(int(event["tgid"])), int(event["time_ns"]))
        self._follow_mappings(events)

    def _drain(self) -> None:
        totals = None
        if time.monotonic() >= self._next_totals_s:  # read first, so that all waits that are in them are here after it
            totals = time.monotonic_ns(), *watched_threads(self._tables)
        self._take_events()
        events = np.concatenate([np.zeros(0, EVENT_DTYPE), *self._held])
        births, self._births, self._held = self._births, [], []
        self._drained_s = time.monotonic()
        self._is_urgent = len(events) > _MANY_EVENTS
        # After the events: a stack is sent before the event that refers to it, so each is here now.
        records = list(self._stack_records.drain_records())
        if any(_stack_pid(record) not in self._tracker.processes for record in records):
            self._take_events()  # of a process that was born meanwhile: its birth was sent before its stack
        self._tracker.detect_started()
        self._add_stacks(records, events[events["kind"] == abi.EventKind["BP_EVENT_EXEC"]])
        self._look_again_at_sleepers()
        self._write_tables()
        self._doubt_replaced(events)
        threads = normalize.thread_indices(events["tid"], self._tracker.thread_index)
        for position, tid, before in reversed(births):
            # A tid that was given again: what came before is the old thread's.
            threads[:position][events["tid"][:position] == tid] = before
        self._rows.write_events(events, threads)
        self.progress.sample_count, self.progress.wait_count = self._rows.sample_count, self._rows.wait_count
        self._follow_ends(events)
        if totals is not None:
            self._rows.write_totals(*totals)
            self._next_totals_s = time.monotonic() + _TOTALS_EVERY_S
            if self._namer is not None:
                self._namer.ask()
            self.progress.lost_count = sum(self._counters().values())
        self._update_progress()

    def _follow_births(self, events: npt.NDArray[np.void], before_count: int) -> list[tuple[int, int, int]]:
        """(position, tid, index the tid had before or -1) of each birth; before_count events are held already."""
        births = []
        for position in np.flatnonzero(events["kind"] == abi.EventKind["BP_EVENT_FORK"]).tolist():
            tid = int(events["tid"][position])
            births.append((before_count + position, tid, self._tracker.thread_index.get(tid, -1)))
            pid, parent = Pid(int(events["tgid"][position])), Pid(int(events["args"][position][0]))
            self._tracker.born(pid, Tid(tid), parent, int(events["time_ns"][position]))
        return births

    def add_sleeper(
        self, process: TrackedProcess, frames: list[tuple[int, int, int]], status: int, call: BlockedSyscall
    ) -> int:
        """Index of the stack of a thread that sleeps since before it was watched; 0 when it has no frames."""
        native, numbers = None, []
        is_finished = process.interpreter is not None or not process.detect_until_s
        if self._namer is not None and self._watch.options.native and process.memory is not None:
            native = native_stack(self._namer.code, process.pid, process.memory, call, time.monotonic_ns())
            is_finished &= native is None or native.native_status != _NATIVE_NOT_READY
            if native is not None and frames and native.native_status:
                native = None  # then Python frames alone are the better answer
        if native is not None and self._namer is not None:
            numbers = self._namer.natives.numbers(process.pid, native)
        if not frames and not numbers:
            return 0
        stack = self._stacks.add_frames(process.codes, frames, status, native, numbers)
        if not is_finished:
            self._stacks.unfinished.add(stack)
            self._stacks.unfinished_pids.add(process.pid)
        return stack

    def is_whole(self, stack: int) -> bool:
        """Whether a stack has all that will ever be known of it."""
        return stack not in self._stacks.unfinished

    def _look_again_at_sleepers(self) -> None:
        """At those of processes some of whose stacks lack what may be known by now."""
        if time.monotonic() < self._next_looks_s:
            return
        self._next_looks_s = time.monotonic() + _LOOKS_EVERY_S
        pids, self._stacks.unfinished_pids = self._stacks.unfinished_pids, set()
        for pid in pids:
            process = self._tracker.processes.get(Pid(pid))
            if process is not None and not process.is_kernel_thread:
                self._tracker.first_sleeps.look_at(process)

    def _follow_mappings(self, events: npt.NDArray[np.void]) -> None:
        """Looks at processes that the kernel side knows too little of, or that mapped code."""
        for pid in np.unique(events["tgid"][events["kind"] == abi.EventKind["BP_EVENT_ASK"]]).tolist():
            self._tracker.asked(Pid(pid))
        if self._watch.mapping_events is not None:
            lost_before = self._watch.mapping_events.lost_count
            found = self._watch.mapping_events.drain(self._tracker.processes)
            has_lost = self._watch.mapping_events.lost_count > lost_before  # it may have been of any
            mapped: dict[Pid, list[MappingEvent]] = {pid: [] for pid in self._tracker.processes if has_lost}
            for event in found:
                mapped.setdefault(event.pid, []).append(event)
            self._tracker.remapped(mapped)

    def _follow_ends(self, events: npt.NDArray[np.void]) -> None:
        ends = events[events["kind"] == abi.EventKind["BP_EVENT_EXIT"]]
        for tid, name in zip(ends["tid"].tolist(), ends["args"][:, :2].copy().view(_COMM).reshape(-1), strict=True):
            self._tracker.was_called(Tid(tid), bytes(name).decode("utf-8", "replace"))
        ended = events["tgid"][(events["kind"] == abi.EventKind["BP_EVENT_EXIT"]) & (events["tid"] == events["tgid"])]
        for pid in ended.tolist():
            self._tracker.ended(Pid(pid))

    def _add_stacks(self, records: list[memoryview], execs: npt.NDArray[np.void]) -> None:
        natives = self._namer.natives if self._namer else None
        for event in execs:  # stacks from before an exec belong to the program before
            before = [record for record in records if _stack_time_ns(record) < int(event["time_ns"])]
            records = records[len(before) :]
            self._stacks.add_records(before, self._tracker.codes_of, natives)
            self._tracker.executed(Pid(int(event["tgid"])), Tid(int(event["tid"])), int(event["time_ns"]))
        self._stacks.add_records(records, self._tracker.codes_of, natives)

    def _doubt_replaced(self, events: npt.NDArray[np.void]) -> None:
        """Takes their stacks from events that name one from before other code came to its addresses.

        The kernel side does not send a stack again that looks the same, until it is told of the new code.
        """
        replaced = self._watch.native.replaced if self._watch.native else {}
        if not replaced:
            return
        generations = self._stacks.generations(events["stack"])
        taken_ns = events["time_ns"] - events["blocked_ns"] - events["runqueue_ns"]
        for (pid, generation), from_ns in list(replaced.items()):
            earlier = (generations > 0) & (generations <= generation)
            doubtful = (events["tgid"] == pid) & earlier & (taken_ns >= from_ns)
            events["stack"][doubtful] = 0
            events["status"][doubtful] = abi.Status["BP_NATIVE_NOT_READY"]
            if from_ns < time.monotonic_ns() - _REPLACED_KEPT_NS:
                del replaced[pid, generation]

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
        if self._namer is not None:
            self._namer.write_new(self._writer)
        if arrays:
            self._writer.write("stacks", arrays=arrays)

    def _write_start(self) -> None:
        host, options = os.uname(), self._watch.options
        start = Start(
            bpfprof_version=__version__,
            start_ns=self._watch.start_ns,
            started_unix_ns=time.time_ns() - (time.monotonic_ns() - self._watch.start_ns),
            host_name=host.nodename,
            kernel_release=host.release,
            rate_hz=options.rate_hz,
            event=options.event,
            mode=options.mode,
            native=options.native,
            min_block_us=options.min_block_us,
            target_pids=list(self._watch.targets.pids),
            status_texts=status_texts(),
        )
        self._writer.write("start", {**start})
        self._write_tables()

    def _counters(self) -> dict[int, int]:
        counts = self._tables.counters()
        first, end = int(abi.Status["BP_LOST_FIRST"]), int(abi.Status["BP_STATUS_COUNT"])
        counts[abi.Status["BP_LOST_THREAD_TABLE_FULL"]] += self._tracker.unwatched_count
        return {index: int(counts[index]) for index in range(first, end) if counts[index]}

    def _problems(self) -> dict[str, int]:
        """What native stacks may lack, beside what each says of itself: sentence -> how often."""
        native, events = self._watch.native, self._watch.mapping_events
        problems: Counter[str] = Counter()
        if native is not None:
            problems.update(f"file without unwind table: {file.note}" for file in native.files.files if file.note)
            problems["files beyond the unwind tables"] += native.files.unmade_count
            problems["code mappings beyond 4,096 of a process"] += native.cut_count
        if events is not None:
            problems["new code mappings not told by the kernel"] += events.lost_count
        if self._namer is not None:
            problems["lists of addresses not named in time"] += self._namer.pending_count
        return {text: count for text, count in problems.items() if count}

    def _update_progress(self) -> None:
        self.progress.elapsed_s = (time.monotonic_ns() - self._watch.start_ns) / 1e9
        self.progress.thread_count = self._tracker.thread_count


def code_row(process: int, code: CodeObject | Unresolved) -> list[Any]:
    """[process, filename, qualified name, first line, reason]; the reason is "" for one that was read."""
    if isinstance(code, CodeObject):
        return [process, code.filename, code.qualname, code.first_line, ""]
    return [process, "", "", 0, code.reason]


def _stack_time_ns(record: memoryview) -> int:
    return int(np.frombuffer(record, STACK_DTYPE, 1)["time_ns"][0])


def _stack_pid(record: memoryview) -> Pid:
    return Pid(int.from_bytes(record[_STACK_PID_AT : _STACK_PID_AT + 4], "little"))


def own_cpu_s() -> float:
    """User and system time of this process, seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
