"""Recording what is being watched: drain the buffers, name what is new, write, until the end."""

from __future__ import annotations

import gc
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.abi.dtypes import THREAD_DTYPE
from bpfprof.capture.async_tasks import AsyncTasks
from bpfprof.capture.ending import Limit, after_asked, until
from bpfprof.capture.inbox import Batch, Inbox
from bpfprof.capture.lock_looks import LooksWhileItGoesOn, look_at_waits
from bpfprof.capture.marks import Marks
from bpfprof.capture.pace import Pace
from bpfprof.capture.problems import problems_of
from bpfprof.capture.process import State
from bpfprof.capture.row_writer import RowWriter
from bpfprof.capture.sleeping import Sleeps
from bpfprof.capture.stacks import StackTable, record_time_ns
from bpfprof.capture.start import recording_start
from bpfprof.capture.stop import StopRequest
from bpfprof.capture.turns import SHARE, SHARE_OF_SCREEN, Turns
from bpfprof.capture.watch import Watch
from bpfprof.code.namer import Namer
from bpfprof.dataclass import dataclass
from bpfprof.errors import TargetError
from bpfprof.kernel.events import ThreadTable
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.rows import picked
from bpfprof.proc import tasks
from bpfprof.proc.cpu_limits import CpuLimits
from bpfprof.proc.listening import Listening
from bpfprof.proc.memory import reads_until
from bpfprof.proc.memory_limits import MemoryLimits
from bpfprof.proc.own_output import readers
from bpfprof.proc.round_trips import RoundTrips
from bpfprof.proc.text import without_controls
from bpfprof.recording.part import STACKS_KEPT
from bpfprof.recording.tables import End
from bpfprof.recording.writer import Sink

_STACK_KEYS = [name for name in THREAD_DTYPE.names or () if name.endswith("stack")]
_COMM = np.dtype(f"S{abi.CONSTANTS['BP_COMM_BYTES']}")
_SLEEPERS_TOGETHER = 10  # processes
# When a recording ends: what is under way, what is left to look at, that and drains, names; more without a signal.
_UNDER_WAY_S, _LOOKS_END_S, _END_S, _NAMES_END_S, _LONGER_S = 0.3, 0.5, 0.9, 2.4, 1.5
_WAITED_NS = 50_000_000  # less, when it ends, is not worth a look
_NOT_COPIED, _NOT_TOLD = int(abi.Status["BP_CODE_NOT_COPIED"]), int(abi.Status["BP_SWITCH_NOT_TOLD"])
_EXEC, _EXIT = abi.EventKind["BP_EVENT_EXEC"], abi.EventKind["BP_EVENT_EXIT"]


@dataclass
class Progress:
    """What the live line shows."""

    elapsed_s: float = 0.0
    sample_count: int = 0
    thread_count: int = 0
    lost_count: int = 0
    own_cpu_s: float = 0.0  # of bpfprof since the recording began


class Session:
    """A recording under way: `begin()`, `run()`, `finish()`.

    part_s, is_quiet: see Pace.
    """

    def __init__(self, watch: Watch, sink: Sink, part_s: float = 0.0, is_quiet: bool = False) -> None:
        self.pace = Pace(watch.options.watches_all, part_s, is_quiet)
        self.progress = Progress()
        self._watch = watch
        self._cpu_before_s = watch.own_cpu_s()
        self._deadline_s = watch.start_ns / 1e9 + (watch.options.duration_s or float("inf"))
        self._sink = sink
        self._tables = watch.kernel.tables
        self._processes = watch.processes
        self._processes.naming.every_s *= self.pace.seldom
        self._inbox = Inbox(self._tables, watch.mapping_events, self._processes)
        symbol_bytes = (watch.options.table_memory_mb << 20) // 4
        self._namer = Namer(watch.code, watch.options.native_lines, symbol_bytes) if watch.code else None
        self._natives = self._namer.natives if self._namer else None
        self._stacks = StackTable()
        self._sleeps = Sleeps(self._processes.threads, self._stacks, self._natives)
        self._async = AsyncTasks(watch.options.async_rate_hz, watch.start_ns, self._stacks)
        self._marks = Marks(self._processes.threads.index_of)
        self._rows = RowWriter(self._processes, self._stacks, self._sleeps, sink, 1000 * watch.options.min_block_us)
        for name in ("events", "stacks", "copies"):
            watch.targets.wake_on(self._tables.fds[name])
        for fd in watch.mapping_events.fds if watch.mapping_events else ():
            watch.targets.wake_on_any(fd)
        self._threads = ThreadTable(self._tables)
        self._used: dict[Pid, tasks.ProcessUsage | None] = {}
        self._memory_limits = MemoryLimits()
        self._cpu_limits, self._round_trips = CpuLimits(), RoundTrips()
        self._limit = Limit(lambda: False)  # of what a drain looks at
        self._turns = Turns(SHARE if is_quiet or not part_s else SHARE_OF_SCREEN)
        self._unseen_waits = 0  # of processes, when it ended
        self._looks = LooksWhileItGoesOn(self._processes, self._threads, self._cpu_limits, sink)

    def begin(self, stop: StopRequest) -> None:
        """Writes the start, looks at threads that sleep already, and lets a launched command begin.

        On a host that has far too much to do, not all of them are looked at before the duration is over.
        """
        self._watch.targets.wake_while(stop.fd)
        self._limit_drains(after_asked(lambda: self._is_over(stop), _UNDER_WAY_S))
        self._write_start()
        self._drain()
        processes = list(self._processes.by_pid.values())
        self._used = {process.pid: tasks.process_usage(process.pid) for process in processes}
        self._memory_limits.begin(self._used)
        self._cpu_limits.begin(self._used)
        for process in processes:  # first, for it is quick
            if self._is_over(stop):
                break
            self._processes.look_for_python(process)
            self._inbox.take()
        processes.sort(key=lambda each: each.interpreter is None)  # those that run Python first
        looked = 0
        for looked, process in enumerate(processes, 1):
            self._sleeps.look_at(process, self._inbox.take, lambda: self._is_over(stop))
            if self._is_over(stop):
                looked -= 1
                break
            if looked % _SLEEPERS_TOGETHER == 0:
                self._drain()  # what is new must be looked at while it is there
        self._processes.take_newly_known(processes[looked:])
        self._watch.release()
        gc.freeze()  # what the start made stays

    def run(self, on_tick: Callable[[Progress], None], stop: StopRequest) -> None:
        """Drains until the duration is over, the targets have ended, or a stop is requested.

        on_tick: called after each drain, after tick_now(), and where those are rare as often as the pace says.

        A launched command has ended with the last process that is followed: as a daemon it goes on in another.
        """
        ended, ticked_s = False, 0.0
        while not ended and not self._is_over(stop):
            next_s = min(self.pace.due_s(self._processes.youngest_s), self._deadline_s)
            every_s = self.pace.wake_s
            wake_s = min(next_s, self._async.due_s, time.monotonic() + every_s)
            ended = self._watch.targets.all_ended(max(0.0, wake_s - time.monotonic()))
            if not ended:
                self._turns.rest(wake_s, lambda s: self._watch.targets.pause(s) or self._inbox.has_many)
            drains = ended or time.monotonic() >= next_s or self._inbox.is_filling
            if drains:
                self._drain()
            elif self._must_drain():
                drains = True
                with self._turns.one():
                    self._drain()
            elif self._watch.targets.woken_by or self._inbox.has_many or self.pace.news_due():
                self._take_news()
            if drains or self._watch.targets.is_told or time.monotonic() >= ticked_s + every_s:
                on_tick(self.progress)
                ticked_s = time.monotonic()
            self._watch.probe_libraries()
            ended = ended and not (self._watch.is_launched and self._processes.living())
            if not ended and time.monotonic() >= self._async.due_s:
                with self._limit.look():
                    self._async.look(list(self._processes.by_pid.values()), self._limit)

    def tick_now(self) -> None:
        """From another thread, which has something for on_tick."""
        self._watch.targets.wake()

    def finish(self, stop: StopRequest) -> None:
        """Takes the kernel side down and writes the end of the recording.

        What is left to look at has _LOOKS_END_S, and to name _NAMES_END_S, or until one more signal comes; without a
        signal what is looked at has _LONGER_S more.
        """
        begin_s = time.monotonic()
        more_s = 0.0 if stop.count else _LONGER_S
        is_over, is_all_over = (until(begin_s + most_s + more_s, stop) for most_s in (_LOOKS_END_S, _END_S))
        cut_before = self._limit.cut_count
        self._limit_drains(is_all_over)
        self.pace.no_more_totals()
        for _ in self._last_looks(is_over):
            self._drain()  # what is new must be looked at while it is there
        usage, end_ns = tasks.used_since(self._used, self._processes.by_pid), self._watch.stop()  # of the same time
        cut_count = cut_before + is_over.cut_count
        self._drain()
        self._marks.close()
        last = self._threads.read()
        self._rows.write_totals(end_ns, *last, is_end=not self.pace.part_s, ends_part=self.pace.part_s > 0)
        if self._watch.calls is not None:
            self._watch.calls.finish(end_ns, *last, self._processes.threads.index_of, self._sink)
        if self._namer is not None:
            self._namer.finish(self._sink, until(begin_s + _NAMES_END_S, stop))
        if not self._processes.threads.count:
            raise TargetError("the target ended before anything was seen")
        counters, listening = self._counters(), Listening()
        end = End(
            end_ns=end_ns,
            own_cpu_ns=int(1e9 * self.progress.own_cpu_s),
            lost={abi.status_text(index): count for index, count in counters.items()},
            codes_unverified=self._stacks.unverified_count,
            codes_replaced=self._stacks.changed_count,
            codes_not_copied=self._tables.counters()[_NOT_COPIED],
            switches_untold=int(self._tables.counters()[_NOT_TOLD]) + self._rows.untold_count,
            problems=problems_of(self._watch, cut_count, self._unseen_waits, self._marks.lost_count),
            tasks_missed=self._async.missed,
            usage=usage,
            limit_hits=self._memory_limits.hits(self._processes.by_pid),
            accepted=self._rows.accepted(self._processes.by_pid, listening),
            listens=listening.where_known(self._python_pids()),
            asks=[pid for pid in self._python_pids() if listening.asks(pid)],
            own_pids=sorted(tasks.own_processes()),
            reader_pids=sorted(readers()),
            above_pids=tasks.above_own(),
            round_trips=self._round_trips.found,
            namespaces_apart=self._round_trips.is_apart,
        )
        if self._watch.calls is not None:
            end["call_libraries"] = self._watch.calls.libraries
        self._sink.write("end", {**end, **self._cpu_limits.told(self._processes.by_pid)})
        self.progress.lost_count = self._lost_of(counters)

    def _last_looks(self, is_over: Limit) -> Iterator[None]:
        """Yields after each, as they take long together."""
        with is_over.look():
            self._processes.refresh_names(is_over)
        self.pace.look_now()
        with is_over.look():
            self._look_at_sleepers(is_over)
        yield
        with is_over.look():
            now = time.monotonic_ns(), *self._threads.read()
            self._sleeps.look_at_unsampled(self._processes.by_pid, *now, is_over, _WAITED_NS)
        yield
        with is_over.look():
            self._async.finish(list(self._processes.by_pid.values()), is_over)
        yield
        with is_over.look():
            if self._watch.options.looks_at_waits:
                them = self._processes, self._threads, self._sink
                self._unseen_waits = look_at_waits(*them, is_over, meanwhile=self._drain_when_due)

    # --- one turn of the loop

    def _is_over(self, stop: StopRequest) -> bool:
        return stop.requested or time.monotonic() >= self._deadline_s

    def _limit_drains(self, limit: Limit) -> None:
        self._limit = self._stacks.is_late = limit

    def _take_news(self) -> None:
        begin_s = time.monotonic()
        with self._turns.one():
            is_theirs = self._inbox.take()
        self.pace.wake(is_theirs)
        if is_theirs:
            self._async.hurry()
        else:
            self._watch.targets.rest(time.monotonic() - begin_s)

    def _must_drain(self) -> bool:
        """Whether something was born whose code must be read while it is there; of a whole machine that is too much."""
        return not self._watch.options.watches_all and self._tables.fds["events"] in self._watch.targets.woken_by

    def _drain_when_due(self) -> None:
        if self.pace.is_soon():
            with reads_until(lambda: False):  # what was taken out of the buffers must be written, whatever is over
                self._drain()

    def _drain(self) -> None:
        begin_s = time.thread_time()
        totals = None
        if self.pace.totals_due():  # read first, so that all waits that are in them are here after it
            totals = time.monotonic_ns(), *self._threads.read()
        batch = self._inbox.drain()
        self.pace.taken(len(batch.events))
        if self._watch.code is not None:
            self._processes.remapped(dict.fromkeys(self._watch.code.take_wanting(), ()))
            self._watch.code.read_wanted()
        self._processes.follow_time()
        self._processes.watch_members()
        self._add_stacks(batch)
        with self._limit.look():
            self._look_at_sleepers(self._limit)
        with self._limit.look():
            self._processes.name_threads()
        self._cpu_limits.note(self._python_pids())
        self._round_trips.look(pid for pid, process in self._processes.by_pid.items() if process.rank)
        self._write_tables()
        if self._watch.options.takes_marks:
            self._marks.take(list(self._processes.by_pid.values()), self._sink)
        if self._watch.code is not None:
            self._stacks.drop_replaced(batch.events, self._watch.code.replaced)
            self._watch.code.forget_replaced()
        later = np.zeros(len(batch.events), np.bool_)
        if totals is not None and self.pace.part_s:
            later = self._rows.is_of_next_part(batch.events, *totals)
        self._write_events(batch, ~later)
        if totals is not None:
            with self._limit.look():
                self._sleeps.look_at_unsampled(self._processes.by_pid, *totals, self._limit)
            if self.pace.part_s and self._watch.options.looks_at_waits:
                with self._limit.look():
                    self._looks.take(totals[0], totals[2])
            self._rows.write_totals(*totals, ends_part=self.pace.part_s > 0)
            if self._watch.calls is not None:
                self._watch.calls.write_when_due(*totals, self._processes.threads.index_of, self._sink)
            records = totals[2]
            self._stacks.forget_old(lambda: np.concatenate([records[name].ravel() for name in _STACK_KEYS]))
            if later.any():
                self._write_events(batch, later)
            if self.pace.part_s and (kept := self._stacks.take_kept()) is not None:
                self._sink.write(STACKS_KEPT, arrays={"stacks": kept})
            self.pace.totals_read()
            if self._namer is not None:
                self._namer.ask(at_once=self.pace.part_s > 0)
                self._namer.code.memory.note_used(self._namer.natives.take_used_files())
            self.progress.lost_count = self._lost_of(self._counters())
        self._update_progress()
        self.pace.cost(time.thread_time() - begin_s)

    def _add_stacks(self, batch: Batch) -> None:
        self._stacks.take_copies(batch.copies, self._processes.codes_of)
        records, position = batch.stacks, 0
        execs = batch.events[batch.events["kind"] == _EXEC]
        if len(execs):
            records = sorted(records, key=record_time_ns)
            times_ns = [record_time_ns(record) for record in records]
        last = {int(event["tgid"]): int(event["time_ns"]) for event in execs}
        for event in execs:
            # Stacks from before an exec belong to the program before.
            pid, time_ns = Pid(int(event["tgid"])), int(event["time_ns"])
            begin, position = position, max(position, bisect_left(times_ns, time_ns))
            self._stacks.add_records(records[begin:position], self._processes.codes_of, self._natives)
            self._processes.executed(pid, Tid(int(event["tid"])), time_ns, time_ns < last[pid])
        self._stacks.add_records(records[position:], self._processes.codes_of, self._natives)

    def _look_at_sleepers(self, is_over: Limit) -> None:
        """At those of processes that are known since lately, or some of whose stacks lack what may be known by now."""
        for process in self._processes.take_newly_known():
            self._sleeps.look_at(process, is_over=is_over)
        if not self.pace.looks_due():
            return
        begin_s = time.monotonic()
        for pid in self._stacks.take_unfinished_pids():
            unfinished = self._processes.by_pid.get(Pid(pid))
            if unfinished is not None and unfinished.state is not State.KERNEL_THREAD:
                self._sleeps.look_at(unfinished, is_over=is_over)
        self.pace.looked(begin_s)

    def _write_events(self, batch: Batch, chosen: npt.NDArray[np.bool_]) -> None:
        events = picked(batch.events, chosen)
        self._rows.write_events(events, batch.threads[chosen])
        self._follow_ends(events)

    def _follow_ends(self, events: npt.NDArray[np.void]) -> None:
        ends = picked(events, events["kind"] == _EXIT)
        for end, comm in zip(ends, ends["args"][:, :2].copy().view(_COMM).reshape(-1)):
            name, pid, tid = without_controls(bytes(comm)), int(end["tgid"]), int(end["tid"])
            self._processes.threads.rename(Tid(tid), name)
            self._processes.threads.ended(Tid(tid))
            if pid == tid:
                self._processes.ended(Pid(pid), int(end["time_ns"]), name)

    def _write_tables(self) -> None:
        self._processes.write_new(self._sink)
        if self._namer is not None:
            self._namer.write_new(self._sink)
        is_new = self._stacks.has_new_codes
        self.pace.met(is_new, self._stacks.write_new(self._sink))
        self._async.table.write_new(self._sink)

    def _write_start(self) -> None:
        self._sink.write("start", {**recording_start(self._watch)})
        self._write_tables()

    def _python_pids(self) -> list[Pid]:
        return [pid for pid, process in self._processes.by_pid.items() if process.interpreter is not None]

    def _counters(self) -> dict[int, int]:
        counts = self._tables.counters()
        first, end = int(abi.Status["BP_LOST_FIRST"]), int(abi.Status["BP_STATUS_COUNT"])
        no_loss = _NOT_COPIED, _NOT_TOLD
        counts[abi.Status["BP_LOST_THREAD_TABLE_FULL"]] += self._processes.threads.unwatched_count
        return {index: int(counts[index]) for index in range(first, end) if counts[index] and index not in no_loss}

    @staticmethod
    def _lost_of(counters: dict[int, int]) -> int:
        """Without stacks: one that there is no room for is sent again with the next that has it."""
        return sum(count for status, count in counters.items() if status != abi.Status["BP_LOST_STACK_RING_FULL"])

    def _update_progress(self) -> None:
        self.progress.sample_count, self.progress.thread_count = self._rows.sample_count, self._processes.threads.count
        self.progress.elapsed_s = (time.monotonic_ns() - self._watch.start_ns) / 1e9
        self.progress.own_cpu_s = self._watch.own_cpu_s() - self._cpu_before_s
