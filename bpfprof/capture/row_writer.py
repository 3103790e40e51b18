"""Events and thread totals of the kernel side to the recording, as rows of its own tables."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.capture import rows as made
from bpfprof.capture.descriptors import DescriptorKinds
from bpfprof.capture.last_waits import LastWaits
from bpfprof.capture.numbers import look_up
from bpfprof.capture.processes import Processes
from bpfprof.capture.shared_futexes import SharedFutexes
from bpfprof.capture.sleeping import Sleeps
from bpfprof.capture.stacks import StackTable
from bpfprof.capture.wakers import Wakers
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.rows import picked
from bpfprof.model.statuses import LastState, Status
from bpfprof.proc import tasks
from bpfprof.proc.listening import Listening
from bpfprof.proc.memory import ProcessMemory
from bpfprof.recording.part import PART_END
from bpfprof.recording.writer import Sink

# A wait that is shorter may be added up only when it ends, so a part of a recording ends before it.
_LONG_WAIT_NS = abi.CONSTANTS["BP_LONG_WAIT_NS"]
_NEVER_NS = np.iinfo(np.int64).max
_RAN_NS = 10_000  # less may be between two looks at the scheduler's clock
_TICK_NS = 10_000_000  # CONFIG_HZ is 100 at least
_DEAD = "ZX"  # states of proc(5)


class RowWriter:
    """Writes samples, waits, short waits and totals; counts samples."""

    def __init__(
        self, processes: Processes, stacks: StackTable, sleeps: Sleeps, sink: Sink, min_block_ns: int = 0
    ) -> None:
        self.sample_count = 0
        self.untold_count = 0  # threads that had left their CPU at the end without a word
        self._processes = processes
        self._stacks = stacks
        self._sleeps = sleeps
        self._sink = sink
        self._descriptors = DescriptorKinds()
        self._shared_futexes = SharedFutexes(self._descriptors.place)
        self._wakers = Wakers(processes)
        self._last_waits = LastWaits()
        self._long_ns = max(_LONG_WAIT_NS, min_block_ns)

    def write_events(self, events: npt.NDArray[np.void], threads: npt.NDArray[np.int64]) -> None:
        """Events with the index of each one's thread; those of unknown threads (-1) are left out."""
        samples, waits, sums, exits, counted = (
            np.flatnonzero((threads >= 0) & (events["kind"] == abi.EventKind[f"BP_EVENT_{name}"]))
            for name in ("SAMPLE", "WAIT", "SHORT", "EXIT", "COUNTED")
        )
        if len(samples):
            self._write_samples(picked(events, samples), threads[samples])
        if len(counted):
            rows = made.events(picked(events, counted), threads[counted], self._stacks)
            self._sink.write("events", arrays={"rows": rows})
        if len(sums):
            rows = made.short_waits(picked(events, sums), threads[sums])
            rows["fd_kind"] = self._descriptors.of_calls(events["tgid"][sums], rows["syscall"], rows["arg"])
            self._write_sums(rows)
        if len(waits) or len(exits):
            told, ends = picked(events, waits), picked(events, exits)
            rows = self._waits(told, threads[waits])
            self._write_waits(self._last_waits.follow(rows, told, threads[exits], ends))
        if len(exits):
            self._sink.write("totals", arrays={"rows": made.exits(ends, threads[exits])})
            self._sleeps.forget(threads[exits].tolist())

    def _write_samples(self, events: npt.NDArray[np.void], threads: npt.NDArray[np.int64]) -> None:
        self.sample_count += len(events)
        self._sink.write("samples", arrays={"rows": made.samples(events, threads, self._stacks)})

    def _waits(self, events: npt.NDArray[np.void], threads: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        rows = made.waits(events, threads, self._stacks, self._sleeps)
        rows["fd_kind"] = self._descriptors.of_calls(events["tgid"], rows["syscall"], rows["args"][:, 0])
        rows["fd_kind"] |= self._descriptors.of_polls(events["tgid"], rows, self._memory_of)
        rows["object"] = self._objects(events, rows)
        rows["waker"], rows["holder"] = self._wakers.places(events), self._wakers.holders(events)
        self._wakers.write_new(self._sink)
        return rows

    def _objects(self, told: npt.NDArray[np.void], rows: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
        places = self._descriptors.objects(told["tgid"], rows, told["object"])
        is_asleep = told["syscall"] != rows["syscall"]  # since before it was watched: the kernel side saw no call
        places[is_asleep] = self._descriptors.objects_now(told["tgid"][is_asleep], picked(rows, is_asleep))
        places |= self._shared_futexes.places(told["tgid"], rows)  # a futex() has no descriptor
        self._descriptors.write_new(self._sink)
        return places

    def accepted(self, pids: Iterable[Pid], listening: Listening) -> list[int]:
        """As DescriptorKinds.accepted()."""
        return self._descriptors.accepted(pids, listening)

    def _write_waits(self, rows: npt.NDArray[np.void]) -> None:
        if len(rows):
            self._sink.write("waits", arrays={"rows": rows})

    def _memory_of(self, pid: Pid) -> ProcessMemory | None:
        process = self._processes.by_pid.get(pid)
        return process.memory if process else None

    def _write_sums(self, rows: npt.NDArray[np.void]) -> None:
        self._sink.write("short_waits", arrays={"rows": rows})

    def is_of_next_part(
        self, events: npt.NDArray[np.void], time_ns: int, tids: npt.NDArray[np.uint32], records: npt.NDArray[np.void]
    ) -> npt.NDArray[np.bool_]:
        """Which events came after what write_totals(ends_part=True) says of their threads, with the same totals."""
        ends_ns = self._part_ends_ns(records, time_ns)
        ended = events[events["kind"] == abi.EventKind["BP_EVENT_EXIT"]]
        end_of = {**dict.fromkeys(ended["tid"].tolist(), _NEVER_NS), **dict(zip(tids.tolist(), ends_ns.tolist()))}
        return np.asarray(events["time_ns"].astype(np.int64) > look_up(events["tid"], end_of, time_ns))

    def _part_ends_ns(self, records: npt.NDArray[np.void], time_ns: int) -> npt.NDArray[np.int64]:
        """Where a part of a recording ends for each thread: where what it does now began, unless that was long ago.

        All that was before is exact. What it does now may be a wait that is added up to others, or end any moment.
        """
        since_ns = records["since_ns"].astype(np.int64)
        ends_ns = np.where(since_ns > time_ns - self._long_ns, since_ns, time_ns)
        ends_ns[records["state"] == abi.ThreadState["BP_THREAD_DEAD"]] = _NEVER_NS
        return ends_ns

    def write_totals(
        self,
        time_ns: int,
        tids: npt.NDArray[np.uint32],
        records: npt.NDArray[np.void],
        is_end: bool = False,
        ends_part: bool = False,
    ) -> None:
        """Totals of all threads (abi.THREAD_DTYPE) that were watched at time_ns, and at the end their open sums.

        All events from before time_ns were written. ends_part: the recording is looked at up to here while it goes on;
        events that is_of_next_part() were not written yet.
        """
        threads = look_up(tids, self._processes.threads.index_of, -1)
        known = (threads >= 0) & (records["state"] != abi.ThreadState["BP_THREAD_DEAD"])
        tids, records, threads = tids[known], records[known], threads[known]
        self._write_waits(self._last_waits.settle(threads, records))
        rows = made.totals(records, threads, time_ns, self._stacks, self._sleeps)
        rows["fd_kind"] = self._descriptors.of_calls(records["tgid"], rows["syscall"], rows["args"][:, 0])
        rows["fd_kind"] |= self._descriptors.of_polls(records["tgid"], rows, self._memory_of)
        rows["object"] = self._objects(records, rows)
        rows["holder"] = self._wakers.holders(records)
        if is_end or ends_part:
            denied_ns = _denied_ns(records, threads, tids)
            self._write_waits(self._last_waits.take_rest(denied_ns))
            self.untold_count = add_running_time(rows, records, tids) + end_waits_for_cpus(rows, records, tids)
            pid_of = dict(zip(threads.tolist(), records["tgid"].tolist()))
            sums = made.open_short_waits(records, threads)
            pids = np.array([pid_of[thread] for thread in sums["thread"].tolist()], np.uint32)
            sums["fd_kind"] = self._descriptors.of_calls(pids, sums["syscall"], sums["arg"])
        if is_end and len(sums):
            self._write_sums(sums)
        self._sink.write("totals", arrays={"rows": rows})
        if ends_part:
            ends_ns = self._part_ends_ns(records, time_ns)
            arrays = {"rows": sums, "threads": rows["thread"], "ends_ns": ends_ns}
            self._sink.write(PART_END, {"time_ns": time_ns}, arrays)


def _denied_ns(
    records: npt.NDArray[np.void], threads: npt.NDArray[np.int64], tids: npt.NDArray[np.uint32]
) -> dict[int, int]:
    """Of threads on a CPU: how much of the run queue that their last wait has the scheduler's run delay denies."""
    denied_ns = {}
    is_running = records["state"] == abi.ThreadState["BP_THREAD_ON_CPU"]
    for position in np.flatnonzero(is_running & (records["last_runqueue_ns"] > _TICK_NS)).tolist():
        record = records[position]
        found = tasks.scheduler_times(Pid(int(record["tgid"])), Tid(int(tids[position])))
        if found is None or record["last_short"]:
            continue
        beyond_ns = int(record["last_runqueue_ns"]) - (found[1] - int(record["run_delay_ns"]))
        if beyond_ns > _TICK_NS:
            denied_ns[int(threads[position])] = beyond_ns
    return denied_ns


def add_running_time(rows: npt.NDArray[np.void], records: npt.NDArray[np.void], tids: npt.NDArray[np.uint32]) -> int:
    """Fills running_ns of rows (TOTAL_DTYPE): how long threads that are on a CPU really ran since they got it.

    Those that did not, and sleep, left it without a word; returns how many. Those of which nothing was heard slept
    since before they were watched; or they ended as they were listed, before the kernel side knew of them.
    """
    states = abi.ThreadState["BP_THREAD_ON_CPU"], abi.ThreadState["BP_THREAD_UNKNOWN"]
    untold_count = 0
    for position in np.flatnonzero(np.isin(records["state"], states)).tolist():
        pid, tid, row = Pid(int(records["tgid"][position])), Tid(int(tids[position])), rows[position]
        times = tasks.scheduler_times(pid, tid)
        is_unheard = records["state"][position] == abi.ThreadState["BP_THREAD_UNKNOWN"]
        open_ns = max(0, int(row["time_ns"]) - int(row["since_ns"]))
        ran_ns = max(0, times[0] - int(records["exec_ns"][position])) if times else open_ns
        # The kernel brings its figure up to date at each tick only: less than that is no difference.
        if open_ns - ran_ns <= _TICK_NS and not (is_unheard and not (times and ran_ns)):
            row["running_ns"] = open_ns
            continue
        status = tasks.thread_status(pid, tid)
        # Who runs is heard of at the next sample at the latest, and at its end.
        if is_unheard and (status is None or status.run_state in _DEAD):
            row["state"], row["since_ns"] = LastState.DEAD, records["first_ns"][position]
        elif status is not None and status.run_state != "R":
            untold_count += not is_unheard or ran_ns > 0
            _leave(row, ran_ns if times else 0)
        else:
            row["running_ns"] = min(ran_ns, open_ns)
    return untold_count


def end_waits_for_cpus(rows: npt.NDArray[np.void], records: npt.NDArray[np.void], tids: npt.NDArray[np.uint32]) -> int:
    """Of threads that are taken to wait for a CPU those that sleep got it and left it without a word; how many. So did
    who wants one now, and has run since.

    One that came since the totals were taken has the wait in its run delay.
    """
    states = abi.ThreadState["BP_THREAD_BLOCKED"], abi.ThreadState["BP_THREAD_RUNNABLE"]
    woken_ns = np.maximum(rows["wake_ns"], rows["since_ns"])
    is_queued = (records["state"] == states[0]) & (rows["wake_ns"] > rows["since_ns"])
    is_queued |= records["state"] == states[1]
    untold_count = 0
    for position in np.flatnonzero(is_queued & (rows["time_ns"] > woken_ns + np.uint64(_TICK_NS))).tolist():
        pid, tid = Pid(int(records["tgid"][position])), Tid(int(tids[position]))
        times, status = tasks.scheduler_times(pid, tid), tasks.thread_status(pid, tid)
        row, record = rows[position], records[position]
        if times is None or status is None:
            continue
        if status.run_state == "R" and times[0] - int(record["exec_ns"]) <= _RAN_NS:
            continue
        if times[1] - int(record["run_delay_ns"]) + _TICK_NS < int(row["time_ns"]) - int(woken_ns[position]):
            open_ns = int(row["time_ns"]) - int(row["since_ns"])
            _leave(row, min(max(0, times[0] - int(record["exec_ns"])), open_ns))
            untold_count += 1
    return untold_count


def _leave(row: np.void, ran_ns: int) -> None:
    """What the row of a thread says that is taken to be on a CPU, or to wait for one, but ran so long and sleeps."""
    if ran_ns or row["state"] == LastState.ON_CPU:  # what it has of a wait is of the one before
        row["stack"], row["status"], row["syscall"], row["args"] = 0, Status.STACK_NOT_TAKEN, -1, 0
        row["fd_kind"], row["object"], row["holder"], row["holder_stack"], row["flags"] = 0, 0, 0, 0, 0
        row["task_state"] = 0
    row["on_cpu_ns"] += np.uint64(ran_ns)
    row["since_ns"] += np.uint64(ran_ns)
    row["state"], row["task_state"], row["wake_ns"] = LastState.BLOCKED, row["task_state"] or 1, 0
