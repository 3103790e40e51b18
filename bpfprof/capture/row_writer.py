"""Events and thread totals of the kernel side to the recording, as rows of its own tables."""

from __future__ import annotations

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.capture import rows as made
from bpfprof.capture.descriptors import DescriptorKinds
from bpfprof.capture.last_waits import LastWaits
from bpfprof.capture.numbers import look_up
from bpfprof.capture.processes import Processes
from bpfprof.capture.sleeping import Sleeps
from bpfprof.capture.stacks import StackTable
from bpfprof.capture.wakers import Wakers
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.statuses import LastState
from bpfprof.proc import tasks
from bpfprof.proc.memory import ProcessMemory
from bpfprof.recording.writer import Sink

_TICK_NS = 10_000_000  # CONFIG_HZ is 100 at least


class RowWriter:
    """Writes samples, waits, short waits and totals; counts what it wrote."""

    def __init__(self, processes: Processes, stacks: StackTable, sleeps: Sleeps, sink: Sink) -> None:
        self.sample_count = 0
        self.wait_count = 0
        self._processes = processes
        self._stacks = stacks
        self._sleeps = sleeps
        self._sink = sink
        self._descriptors = DescriptorKinds()
        self._wakers = Wakers(processes)
        self._last_waits = LastWaits()

    def write_events(self, events: npt.NDArray[np.void], threads: npt.NDArray[np.int64]) -> None:
        """Events with the index of each one's thread; those of unknown threads (-1) are left out."""
        samples, waits, sums, exits, counted = (
            np.flatnonzero((threads >= 0) & (events["kind"] == abi.EventKind[f"BP_EVENT_{name}"]))
            for name in ("SAMPLE", "WAIT", "SHORT", "EXIT", "COUNTED")
        )
        if len(samples):
            self._write_samples(events[samples], threads[samples])
        if len(counted):
            rows = made.events(events[counted], threads[counted], self._stacks)
            self._sink.write("events", arrays={"rows": rows})
        if len(sums):
            self._write_sums(made.short_waits(events[sums], threads[sums]), events["tgid"][sums])
        if len(waits) or len(exits):
            rows = self._waits(events[waits], threads[waits])
            self._write_waits(self._last_waits.follow(rows, events[waits], threads[exits], events[exits]))
        if len(exits):
            self._sink.write("totals", arrays={"rows": made.exits(events[exits], threads[exits])})

    def _write_samples(self, events: npt.NDArray[np.void], threads: npt.NDArray[np.int64]) -> None:
        self.sample_count += len(events)
        self._sink.write("samples", arrays={"rows": made.samples(events, threads, self._stacks)})

    def _waits(self, events: npt.NDArray[np.void], threads: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        self.wait_count += len(events)
        rows = made.waits(events, threads, self._stacks, self._sleeps)
        rows["fd_kind"] = self._descriptors.of_calls(events["tgid"], rows["syscall"], rows["args"][:, 0])
        rows["fd_kind"] |= self._descriptors.of_polls(events["tgid"], rows, self._memory_of)
        rows["waker"], rows["holder"] = self._wakers.places(events), self._wakers.holders(events)
        self._wakers.write_new(self._sink)
        return rows

    def _write_waits(self, rows: npt.NDArray[np.void]) -> None:
        if len(rows):
            self._sink.write("waits", arrays={"rows": rows})

    def _memory_of(self, pid: Pid) -> ProcessMemory | None:
        process = self._processes.by_pid.get(pid)
        return process.memory if process else None

    def _write_sums(self, rows: npt.NDArray[np.void], pids: npt.NDArray[np.uint32]) -> None:
        self.wait_count += int(rows["count"].sum())
        rows["fd_kind"] = self._descriptors.of_calls(pids, rows["syscall"], rows["arg"])
        self._sink.write("short_waits", arrays={"rows": rows})

    def write_totals(
        self, time_ns: int, tids: npt.NDArray[np.uint32], records: npt.NDArray[np.void], is_end: bool = False
    ) -> None:
        """Totals of all threads (abi.THREAD_DTYPE) that were watched at time_ns, and at the end their open sums.

        All events from before time_ns were written.
        """
        threads = look_up(tids, self._processes.threads.index_of, -1)
        known = (threads >= 0) & (records["state"] != abi.ThreadState["BP_THREAD_DEAD"])
        tids, records, threads = tids[known], records[known], threads[known]
        self._write_waits(self._last_waits.settle(threads, records))
        rows = made.totals(records, threads, time_ns, self._stacks, self._sleeps)
        rows["fd_kind"] = self._descriptors.of_calls(records["tgid"], rows["syscall"], rows["args"][:, 0])
        rows["holder"] = self._wakers.holders(records)
        if is_end:
            self._write_waits(self._last_waits.take_rest())
            _add_running_time(rows, records, tids)
            sums = made.open_short_waits(records, threads)
            if len(sums):
                pid_of = dict(zip(threads.tolist(), records["tgid"].tolist()))
                pids = np.array([pid_of[thread] for thread in sums["thread"].tolist()], np.uint32)
                self._write_sums(sums, pids)
        self._sink.write("totals", arrays={"rows": rows})


def _add_running_time(rows: npt.NDArray[np.void], records: npt.NDArray[np.void], tids: npt.NDArray[np.uint32]) -> None:
    """Fills running_ns of rows (TOTAL_DTYPE): how long threads that are on a CPU really ran since they got it."""
    states = abi.ThreadState["BP_THREAD_ON_CPU"], abi.ThreadState["BP_THREAD_UNKNOWN"]
    for position in np.flatnonzero(np.isin(records["state"], states)).tolist():
        pid, tid = Pid(int(records["tgid"][position])), Tid(int(tids[position]))
        now = tasks.on_cpu_ns(pid, tid)
        open_ns = max(0, int(rows["time_ns"][position]) - int(rows["since_ns"][position]))
        ran = now - int(records["exec_ns"][position]) if now else open_ns
        if not ran and records["state"][position] == abi.ThreadState["BP_THREAD_UNKNOWN"]:
            # It slept since before it was watched, and was not looked at.
            status = tasks.thread_status(pid, tid)
            if status is not None and status.run_state != "R":
                rows["state"][position] = LastState.BLOCKED
                rows["task_state"][position] = 1
                continue
        # The kernel brings its figure up to date at each tick only: less than that is no difference.
        rows["running_ns"][position] = min(max(ran, 0), open_ns) if open_ns - ran > _TICK_NS else open_ns
