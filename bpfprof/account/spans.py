"""Recording -> spans: what each nanosecond of each thread was. The recording is not changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.cpu_clock import Bursts
from bpfprof.account.cpu_shares import share_cpu_time
from bpfprof.account.estimate import SUM_DTYPE, estimated, spread, summed
from bpfprof.account.gil import find_gil_waits
from bpfprof.account.idle import IDLE_REASONS, idle_stacks
from bpfprof.account.kernel_reasons import kernel_hints
from bpfprof.account.reasons import FUTEX_CALLS, as_waits, wait_reasons
from bpfprof.account.threads import Int64Array, collect_threads
from bpfprof.account.wakers import waker_places
from bpfprof.model.samples import HOLDS_GIL
from bpfprof.model.spans import SPAN_DTYPE, How, SpanFlag, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.model.statuses import Status
from bpfprof.recording.reader import Recording

Window = tuple[int, int]  # from, to: nanoseconds since the recording began
Spans = npt.NDArray[np.void]
_BLOCK_ROWS = 1 << 16


class SpanSource:
    """The spans of one recording, thread by thread. statuses: of each of its stacks by number, 0: none."""

    def __init__(self, recording: Recording, statuses: npt.NDArray[np.uint8]) -> None:
        self._recording, self._statuses = recording, statuses
        self.threads = threads = collect_threads(recording)
        waits = threads.waits
        namer = _ReasonNamer(recording)
        self._reasons = waits.in_order(np.concatenate([namer.reasons(rows, rows["thread"]) for rows in waits.parts]))
        self._times()
        self._is_first, self._held = find_gil_waits(recording, threads, self._reasons, self._begin_ns, self._woken_ns)
        short = recording.short_waits
        reasons = namer.reasons(as_waits(short), short["thread"])
        self.sums = summed(short, reasons)
        self._is_idle = idle_stacks(recording)
        self._paths = _function_paths(recording)
        self.wakers = waker_places(recording, waits, self._reasons, self._woken_ns - self._begin_ns)

    def _times(self) -> None:
        """From when to when each wait was blocked and then runnable; in the order of places, none before another."""
        waits, threads = self.threads.waits, self.threads
        end = waits.column("time_ns").astype(np.int64)
        runqueue, blocked = (waits.column(name).astype(np.int64) for name in ("runqueue_ns", "blocked_ns"))
        woken, begin = end - runqueue, end - runqueue - blocked
        for thread in range(len(threads.first_ns)):
            own = waits.of_thread(thread)
            limits = threads.first_ns[thread], threads.last_ns[thread]
            end[own] = np.maximum.accumulate(end[own].clip(*limits))
            before = np.append(limits[0], end[own])[:-1]
            woken[own], begin[own] = np.clip(woken[own], before, end[own]), np.clip(begin[own], before, end[own])
        self._begin_ns, self._woken_ns, self._end_ns = np.minimum(begin, woken), woken, end

    def overlap_ns(self, thread: int) -> int:
        """What the recording has of a thread beyond its spans: 0 unless it is damaged."""
        if not self._recording.end:
            return 0
        threads, (bursts, sums) = self.threads, self._bursts(thread)
        wall_ns = int(threads.last_ns[thread] - threads.first_ns[thread])
        held_ns = int(threads.on_cpu_ns[thread] + threads.off_cpu_ns[thread] + sums["ns"].sum())
        return held_ns - (wall_ns - int(bursts.unknown_ns.sum()))

    def of_thread(self, thread: int, window: Window | None = None) -> Iterator[Spans]:
        """All spans of a thread, in any order, a bounded number of waits at a time; those of a window cut to it."""

        def blocks() -> Iterator[Spans]:
            for block in (*self._waits(thread), *self._bursts_cut(thread)):
                yield block if window is None else _cut(block, window)

        own = self.threads.waits.of_thread(thread)
        has_unsampled = self.sums["is_unsampled"][self.sums["thread"] == thread].any()
        if has_unsampled or (self.threads.waits.column("status", own) == Status.NOT_SAMPLED).any():
            return estimated(blocks)
        return blocks()

    # --- waits with a row

    def _waits(self, thread: int) -> Iterator[Spans]:
        for own in self.threads.waits.blocks(thread):
            yield self._blocked(own)
            yield self._runnable(own)

    def _common(self, own: slice) -> Spans:
        waits = self.threads.waits
        spans = np.zeros(own.stop - own.start, SPAN_DTYPE)
        for name in ("thread", "stack", "task_state", "one_in"):
            spans[name] = waits.column(name, own)
        spans["status"] = self._status(spans["stack"], waits.column("status", own))
        spans["flags"] = np.where(waits.column("flags", own) & HOLDS_GIL > 0, SpanFlag.HOLDS_GIL, 0)
        spans["reason"], spans["wait"] = self._reasons[own], np.cumsum(self._is_first[: own.stop])[own]
        spans["count"] = self._is_first[own]
        return spans

    def _status(self, stacks: npt.NDArray[Any], statuses: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        return np.where(stacks > 0, self._statuses[stacks], statuses).astype(np.uint8)

    def _blocked(self, own: slice) -> Spans:
        waits, spans = self.threads.waits, self._common(own)
        spans["state"] = ThreadState.OFF_CPU
        is_lock = np.isin(waits.column("syscall", own), FUTEX_CALLS) & (spans["reason"] == reason_number("lock"))
        spans["lock"] = np.where(is_lock, waits.column("args", own)[:, 0], 0)
        may_idle = np.isin(spans["reason"], [reason_number(word) for word in IDLE_REASONS])
        spans["flags"] |= np.where(may_idle & self._is_idle[spans["stack"]], SpanFlag.IDLE, 0).astype(np.uint8)
        spans["waker"], spans["waker_stack"] = self.wakers[own], waits.column("waker_stack", own)
        self._place(spans, self._begin_ns[own], self._woken_ns[own] - self._begin_ns[own])
        held = self._held[slice(*np.searchsorted(self._held["place"], (own.start, own.stop)))]
        if not len(held):
            return spans[spans["duration_ns"] > 0]
        parts = spans[held["place"] - own.start]
        self._place(parts, held["start_ns"], held["ns"])
        parts["holder"], parts["holder_stack"] = held["holder"], held["stack"]
        parts["count"][1:][np.diff(held["place"]) == 0] = 0
        spans["duration_ns"][held["place"] - own.start] = 0  # the parts are in their place
        return np.concatenate([parts, spans[spans["duration_ns"] > 0]])

    def _runnable(self, own: slice) -> Spans:
        spans = self._common(own)
        spans["state"] = ThreadState.RUNQUEUE
        self._place(spans, self._woken_ns[own], self._end_ns[own] - self._woken_ns[own])
        return spans[spans["duration_ns"] > 0]

    def _place(self, spans: Spans, start_ns: npt.NDArray[Any], duration_ns: npt.NDArray[Any]) -> None:
        spans["start_ns"], spans["duration_ns"] = start_ns - self.threads.start_ns, duration_ns
        spans["stands_for_ns"] = duration_ns

    # --- between them

    def _bursts(self, thread: int) -> tuple[Bursts, Spans]:
        """(the time between waits with a row, rows of SUM_DTYPE of the waits in it).

        Sums that an unfinished recording does not have any more are waits for an unknown reason.
        """
        own = self.threads.waits.of_thread(thread)
        sums = self.sums[slice(*np.searchsorted(self.sums["thread"], (thread, thread + 1)))]
        args, has_no_end = (thread, self.threads, self._begin_ns[own], self._end_ns[own]), not self._recording.end
        bursts = Bursts.of_thread(*args, int(sums["ns"].sum()), has_no_end)
        missing_ns = int(bursts.unknown_ns.sum())
        if missing_ns and has_no_end:
            unheard = (thread, missing_ns, 0, reason_number("unknown"), ThreadState.OFF_CPU, False)
            sums = np.append(sums, np.array([unheard], SUM_DTYPE))
            bursts = Bursts.of_thread(*args, int(sums["ns"].sum()))
        return bursts, sums

    def _bursts_cut(self, thread: int) -> Iterator[Spans]:
        """CPU time by samples, and what is between: stolen time, waits that were only added up, what is not known."""
        threads, recording, (bursts, sums) = self.threads, self._recording, self._bursts(thread)
        period_ns = int(1e9 / max(1, int(recording.start.get("rate_hz", 0) or 1)))
        # A burst began with the stack of the wait before it and ended with that of the wait after it.
        paths = self._paths[threads.waits.column("stack", threads.waits.of_thread(thread))]
        groups = np.append(0, paths) * len(self._paths) + np.append(paths, 0)
        own = threads.samples.of_thread(thread)
        moments = bursts.positions(threads.samples.column("time_ns", own).astype(np.int64))
        pieces = share_cpu_time(moments, bursts.edges, period_ns, groups)
        empty = np.flatnonzero(np.diff(bursts.edges) == 0)  # bursts without CPU time
        none = np.zeros(len(empty), np.int64)
        position = np.concatenate([pieces.start, bursts.edges[empty]])
        length = np.concatenate([pieces.length, none])
        sample = np.concatenate([pieces.sample, none - 1])
        burst = np.searchsorted(bursts.edges, pieces.start, side="right") - 1
        at_ns, stolen_ns, added_ns, unknown_ns = bursts.wall_clock(position, length, np.concatenate([burst, empty]))
        spans = np.zeros(len(position), SPAN_DTYPE)
        spans["thread"], spans["status"] = thread, Status.NOT_SAMPLED
        named = np.flatnonzero(sample >= 0)
        chosen = own.start + sample[named]
        spans["stack"][named] = threads.samples.column("stack", chosen)
        spans["status"][named] = self._status(spans["stack"][named], threads.samples.column("status", chosen))
        holds = threads.samples.column("flags", chosen) & HOLDS_GIL > 0
        spans["flags"][named] = np.where(holds, SpanFlag.HOLDS_GIL, 0)
        cpu = spans.copy()
        cpu["count"][named[np.unique(sample[named], return_index=True)[1]]] = 1  # a sample counts in its first piece
        self._place(cpu, at_ns, length)
        yield cpu[length > 0]
        spans["count"] = 1
        at_ns = at_ns + length
        for state, ns in ((ThreadState.RUNQUEUE, stolen_ns), (ThreadState.UNKNOWN, unknown_ns)):
            spans["state"] = state
            self._place(spans, at_ns, ns)
            yield spans[ns > 0]
            at_ns = at_ns + ns
        gap = np.flatnonzero(added_ns)
        for begin in range(0, len(gap), _BLOCK_ROWS):
            chosen = gap[begin : begin + _BLOCK_ROWS]
            yield self._added(at_ns[chosen], added_ns[chosen], sums)

    def _added(self, at_ns: Int64Array, gaps_ns: Int64Array, sums: Spans) -> Spans:
        nanoseconds, counts = spread(gaps_ns, sums)
        gap, which = np.nonzero(nanoseconds)
        spans = np.zeros(len(gap), SPAN_DTYPE)
        self._place(
            spans, (at_ns[:, None] + np.cumsum(nanoseconds, axis=1) - nanoseconds)[gap, which], nanoseconds[gap, which]
        )
        spans["count"] = counts[gap, which]
        for name in ("thread", "reason", "state"):
            spans[name] = sums[name][which]
        spans["status"] = np.where(sums["is_unsampled"][which], Status.NOT_SAMPLED, Status.SHORT_WAIT)
        spans["how"] = How.SUMMED
        return spans


def _cut(spans: Spans, window: Window) -> Spans:
    """Spans of a window; what was under way when it began counts there."""
    begin, end = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    kept = spans[(end > window[0]) & (begin < window[1])]
    begin, end = kept["start_ns"].clip(*window), (kept["start_ns"] + kept["duration_ns"]).clip(*window)
    kept["count"][kept["start_ns"] < begin] = 1
    kept["start_ns"], kept["duration_ns"], kept["stands_for_ns"] = begin, end - begin, end - begin
    return np.asarray(kept)


class _ReasonNamer:
    """Reasons of rows, with what is known of their threads' processes."""

    def __init__(self, recording: Recording) -> None:
        processes = [recording.processes[thread.process] for thread in recording.threads]
        gils = [process.gil or (0, 0) for process in processes] or [(0, 0)]
        self._gil_start = np.array([start for start, _ in gils], np.uint64)
        self._gil_end = self._gil_start + np.array([size for _, size in gils], np.uint64)
        self._of_kernel = np.array([process.is_kernel_thread for process in processes] or [False])
        self._outside, self._inside = kernel_hints(recording)

    def reasons(self, rows: Spans, thread_of: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
        """In the order of the rows; a bounded number at a time is worked on."""
        blocks = [np.zeros(0, np.uint16)]
        for begin in range(0, len(rows), _BLOCK_ROWS):
            part, thread = rows[begin : begin + _BLOCK_ROWS], thread_of[begin : begin + _BLOCK_ROWS]
            of_kernel, stack = self._of_kernel[thread], part["stack"]
            in_call = (part["syscall"] >= 0) | of_kernel
            hints = np.where(in_call, self._inside[stack], self._outside[stack])
            blocks.append(wait_reasons(part, self._gil_start[thread], self._gil_end[thread], of_kernel, hints))
        return np.concatenate(blocks)


def _function_paths(recording: Recording) -> Int64Array:
    """A number for each stack (0: no stack), the same for stacks that differ in lines only."""
    codes, counts = recording.python_frames["code"], recording.stacks["python_count"]
    ends = np.cumsum(counts, dtype=np.int64)
    numbers: dict[bytes, int] = {}
    paths = np.zeros(len(counts) + 1, np.int64)
    for index, (end, count) in enumerate(zip(ends.tolist(), counts.tolist()), 1):
        paths[index] = numbers.setdefault(codes[end - count : end].tobytes(), len(numbers) + 1)
    return paths
