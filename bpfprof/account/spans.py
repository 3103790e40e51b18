"""Recording -> spans: what each nanosecond of each thread was. The recording is not changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.cpu_clock import Bursts
from bpfprof.account.cpu_shares import CpuPieces, share_cpu_time
from bpfprof.account.estimate import SUM_DTYPE, estimated, spread, summed
from bpfprof.account.gil import find_gil_waits
from bpfprof.account.idle import IDLE_REASONS, idle_stacks
from bpfprof.account.kernel_reasons import kernel_hints
from bpfprof.account.locks import Locks, ranges_of
from bpfprof.account.reasons import FUTEX_CALLS, as_waits, wait_reasons
from bpfprof.account.stack_functions import StackFunctions
from bpfprof.account.threads import Int64Array, collect_threads
from bpfprof.account.wakers import waker_places
from bpfprof.model.rows import copied, one_after_another, picked
from bpfprof.model.samples import HOLDS_GIL
from bpfprof.model.spans import SPAN_DTYPE, How, SpanFlag, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.model.statuses import Status
from bpfprof.recording.reader import Recording

Window = tuple[int, int]  # from, to: nanoseconds since the recording began
Spans = npt.NDArray[np.void]
_BLOCK_ROWS = 1 << 16
_MOST_NS = 1 << 60


class SpanSource:
    """The spans of one recording, some threads at a time. statuses: of each of its stacks by number, 0: none."""

    def __init__(self, recording: Recording, statuses: npt.NDArray[np.uint8]) -> None:
        self._recording, self._statuses = recording, statuses
        self.threads = threads = collect_threads(recording)
        waits = threads.waits
        namer = _ReasonNamer(recording)
        self._reasons = waits.in_order(np.concatenate([namer.reasons(rows, rows["thread"]) for rows in waits.parts]))
        self._times()
        self._is_first, self._held = find_gil_waits(recording, threads, self._reasons, self._begin_ns, self._woken_ns)
        self._wait_number = np.cumsum(self._is_first)
        short = recording.short_waits
        reasons = namer.reasons(as_waits(short), short["thread"])
        self.sums = summed(short, reasons)
        functions = StackFunctions(recording)
        self._is_idle, self._locks = idle_stacks(functions), Locks(functions)
        self._paths = _function_paths(recording)
        self.wakers = waker_places(recording, waits, self._reasons, self._woken_ns - self._begin_ns)

    def _times(self) -> None:
        """From when to when each wait was blocked and then runnable; in the order of places, none before another."""
        waits = self.threads.waits
        end = waits.column("time_ns").astype(np.int64)
        runqueue, blocked = (waits.column(name).astype(np.int64) for name in ("runqueue_ns", "blocked_ns"))
        woken, begin = end - runqueue, end - runqueue - blocked
        for group in self.groups():
            own = waits.of_threads(group)
            count = np.diff(waits.begin[group.start : group.stop + 1])
            rank = np.repeat(np.arange(len(group)), count)
            limits = self.threads.first_ns, self.threads.last_ns
            first, last = (np.repeat(times[group.start : group.stop], count) for times in limits)
            # The threads one after the other, so that none begins before the one before it ends.
            base = rank * (self.threads.end_ns - self.threads.start_ns + 1) - self.threads.start_ns
            end[own] = np.maximum.accumulate(end[own].clip(first, last) + base) - base
            before = np.append(0, end[own])[:-1]
            is_first = np.flatnonzero(np.diff(rank, prepend=-1))
            before[is_first] = first[is_first]
            woken[own], begin[own] = np.clip(woken[own], before, end[own]), np.clip(begin[own], before, end[own])
        self._begin_ns, self._woken_ns, self._end_ns = np.minimum(begin, woken), woken, end

    def groups(self) -> Iterator[range]:
        """All threads, in groups that have a bounded number of rows if they have more than one thread."""
        threads = self.threads
        rows = np.diff(threads.waits.begin) + np.diff(threads.samples.begin) + 1
        # Threads of a group are laid one after the other on one clock, which must not come to its end.
        most = max(1, _MOST_NS // max(1, threads.end_ns - threads.start_ns + 1))
        begin = held = ran_ns = 0
        for thread, (count, on_cpu_ns) in enumerate(zip(rows.tolist(), threads.on_cpu_ns.tolist())):
            is_full = held + count > _BLOCK_ROWS or thread - begin >= most or ran_ns + on_cpu_ns > _MOST_NS
            if is_full and thread > begin:
                yield range(begin, thread)
                begin, held, ran_ns = thread, 0, 0
            held, ran_ns = held + count, ran_ns + on_cpu_ns
        if begin < len(rows):
            yield range(begin, len(rows))

    def overlaps_ns(self, chosen: range) -> Int64Array:
        """What the recording has of each thread of a group beyond its spans: 0 unless it is damaged."""
        threads, own = self.threads, slice(chosen.start, chosen.stop)
        if not self._recording.end:
            return np.zeros(len(chosen), np.int64)
        bursts, sums = self._bursts(chosen)
        held_ns = threads.on_cpu_ns[own] + threads.off_cpu_ns[own] + self._added_ns(chosen, sums)
        wall_ns = (threads.last_ns - threads.first_ns)[own]
        return np.asarray(held_ns - (wall_ns - np.add.reduceat(bursts.unknown_ns, bursts.first[:-1])))

    def of_thread(self, thread: int, window: Window | None = None) -> Iterator[Spans]:
        """All spans of a thread, in any order, a bounded number of waits at a time; those of a window cut to it."""
        return self.of_threads(range(thread, thread + 1), window)

    def of_threads(self, chosen: range, window: Window | None = None) -> Iterator[Spans]:
        """The same of the threads of a group, in any order."""

        def blocks() -> Iterator[Spans]:
            for block in (*self._waits(chosen), *self._bursts_cut(chosen)):
                yield block if window is None else _cut(block, window)

        own = self.threads.waits.of_threads(chosen)
        has_unsampled = self._sums_of(chosen)["is_unsampled"].any()
        if has_unsampled or (self.threads.waits.column("status", own) == Status.NOT_SAMPLED).any():
            return estimated(blocks)
        return blocks()

    # --- waits with a row

    def _waits(self, chosen: range) -> Iterator[Spans]:
        for own in self.threads.waits.blocks(chosen):
            yield self._blocked(own)
            yield self._runnable(own)

    def _common(self, own: slice) -> Spans:
        waits = self.threads.waits
        spans = np.zeros(own.stop - own.start, SPAN_DTYPE)
        for name in ("thread", "stack", "task_state", "one_in"):
            spans[name] = waits.column(name, own)
        spans["status"] = self._status(spans["stack"], waits.column("status", own))
        spans["flags"] = np.where(waits.column("flags", own) & HOLDS_GIL > 0, SpanFlag.HOLDS_GIL, 0)
        spans["reason"], spans["wait"] = self._reasons[own], self._wait_number[own]
        spans["count"] = self._is_first[own]
        return spans

    def _status(self, stacks: npt.NDArray[Any], statuses: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        return np.where(stacks > 0, self._statuses[stacks], statuses).astype(np.uint8)

    def _blocked(self, own: slice) -> Spans:
        waits, spans = self.threads.waits, self._common(own)
        spans["state"] = ThreadState.OFF_CPU
        is_lock = np.isin(waits.column("syscall", own), FUTEX_CALLS) & (spans["reason"] == reason_number("lock"))
        args = waits.column("args", own)
        locks = self._locks.of(args, spans["stack"], waits.column("waker_stack", own))
        ranges = np.where(spans["reason"] == reason_number("file-lock"), ranges_of(args), np.uint64(0))
        spans["lock"] = np.where(is_lock, locks, ranges)
        spans["object"] = waits.column("object", own)
        may_idle = np.isin(spans["reason"], [reason_number(word) for word in IDLE_REASONS])
        spans["flags"] |= np.where(may_idle & self._is_idle[spans["stack"]], SpanFlag.IDLE, 0).astype(np.uint8)
        spans["waker"], spans["waker_stack"] = self.wakers[own], waits.column("waker_stack", own)
        self._place(spans, self._begin_ns[own], self._woken_ns[own] - self._begin_ns[own])
        held = self._held[slice(*np.searchsorted(self._held["place"], (own.start, own.stop)))]
        if not len(held):
            return picked(spans, spans["duration_ns"] > 0)
        parts = picked(spans, held["place"] - own.start)
        self._place(parts, held["start_ns"], held["ns"])
        parts["holder"], parts["holder_stack"] = held["holder"], held["stack"]
        parts["count"][1:][np.diff(held["place"]) == 0] = 0
        spans["duration_ns"][held["place"] - own.start] = 0  # the parts are in their place
        return one_after_another(SPAN_DTYPE, [parts, picked(spans, spans["duration_ns"] > 0)])

    def _runnable(self, own: slice) -> Spans:
        spans = self._common(own)
        spans["state"] = ThreadState.RUNQUEUE
        self._place(spans, self._woken_ns[own], self._end_ns[own] - self._woken_ns[own])
        return picked(spans, spans["duration_ns"] > 0)

    def _place(self, spans: Spans, start_ns: npt.NDArray[Any], duration_ns: npt.NDArray[Any]) -> None:
        spans["start_ns"], spans["duration_ns"] = start_ns - self.threads.start_ns, duration_ns
        spans["stands_for_ns"] = duration_ns

    # --- between them

    def _sums_of(self, chosen: range) -> Spans:
        return self.sums[slice(*np.searchsorted(self.sums["thread"], (chosen.start, chosen.stop)))]

    def _added_ns(self, chosen: range, sums: Spans) -> Int64Array:
        """All of the sums of each thread."""
        added_ns = np.zeros(len(chosen), np.int64)
        np.add.at(added_ns, sums["thread"].astype(np.int64) - chosen.start, sums["ns"])
        return added_ns

    def _bursts(self, chosen: range) -> tuple[Bursts, Spans]:
        """(the time between waits with a row, rows of SUM_DTYPE of the waits in it, by thread).

        Sums that an unfinished recording does not have any more are waits for an unknown reason.
        """
        own, sums = self.threads.waits.of_threads(chosen), self._sums_of(chosen)
        args, has_no_end = (chosen, self.threads, self._begin_ns[own], self._end_ns[own]), not self._recording.end
        bursts = Bursts.of_threads(*args, self._added_ns(chosen, sums), has_no_end)
        missing_ns = np.add.reduceat(bursts.unknown_ns, bursts.first[:-1])
        if has_no_end and missing_ns.any():
            of_thread = np.flatnonzero(missing_ns)
            unheard = np.zeros(len(of_thread), SUM_DTYPE)
            unheard["thread"], unheard["ns"] = chosen.start + of_thread, missing_ns[of_thread]
            unheard["reason"], unheard["state"] = reason_number("unknown"), ThreadState.OFF_CPU
            sums = np.append(sums, unheard)
            sums = sums[np.argsort(sums["thread"], kind="stable")]
            bursts = Bursts.of_threads(*args, self._added_ns(chosen, sums))
        return bursts, sums

    def _pieces(self, chosen: range, bursts: Bursts) -> CpuPieces:
        """CPU time of all threads on their clocks, shared out over their samples; `sample` is a place."""
        threads = self.threads
        period_ns = int(1e9 / max(1, int(self._recording.start.get("rate_hz", 0) or 1)))
        # A burst began with the stack of the wait before it and ended with that of the wait after it.
        paths = self._paths[threads.waits.column("stack", threads.waits.of_threads(chosen))]
        groups = np.zeros(len(bursts.thread), np.int64)
        groups[bursts.before_wait] = paths
        groups[bursts.before_wait + 1] += paths * len(self._paths)
        own = threads.samples.of_threads(chosen)
        begin = threads.samples.begin[chosen.start : chosen.stop + 1] - own.start
        of_thread = np.repeat(np.arange(len(chosen)), np.diff(begin))
        moments = bursts.positions(threads.samples.column("time_ns", own).astype(np.int64), of_thread)
        unseen = np.flatnonzero((np.diff(bursts.edges) > 0) & (np.diff(begin) == 0)[bursts.thread])
        parts = [CpuPieces(bursts.edges[unseen], np.diff(bursts.edges)[unseen], np.full(len(unseen), -1, np.int64))]
        for thread in np.flatnonzero(np.diff(begin)).tolist():
            samples = slice(int(begin[thread]), int(begin[thread + 1]))
            first, end = bursts.first[thread : thread + 2].tolist()
            edges, at = bursts.edges[first : end + 1], int(bursts.edges[first])
            found = share_cpu_time(moments[samples] - at, edges - at, period_ns, groups[first:end])
            sample = np.where(found.sample >= 0, found.sample + own.start + samples.start, -1)
            parts.append(CpuPieces(found.start + at, found.length, sample))
        return CpuPieces(*(np.concatenate(columns) for columns in zip(*parts)))

    def _bursts_cut(self, chosen: range) -> Iterator[Spans]:
        """CPU time by samples, and what is between: stolen time, waits that were only added up, what is not known."""
        samples, (bursts, sums) = self.threads.samples, self._bursts(chosen)
        pieces = self._pieces(chosen, bursts)
        empty = np.flatnonzero(np.diff(bursts.edges) == 0)  # bursts without CPU time
        none = np.zeros(len(empty), np.int64)
        position = np.concatenate([pieces.start, bursts.edges[empty]])
        length = np.concatenate([pieces.length, none])
        sample = np.concatenate([pieces.sample, none - 1])
        burst = np.append(np.searchsorted(bursts.edges, pieces.start, side="right") - 1, empty)
        at_ns, stolen_ns, added_ns, unknown_ns = bursts.wall_clock(position, length, burst)
        spans = np.zeros(len(position), SPAN_DTYPE)
        spans["thread"], spans["status"] = chosen.start + bursts.thread[burst], Status.NOT_SAMPLED
        named = np.flatnonzero(sample >= 0)
        places = sample[named]
        spans["stack"][named] = samples.column("stack", places)
        spans["status"][named] = self._status(spans["stack"][named], samples.column("status", places))
        holds = samples.column("flags", places) & HOLDS_GIL > 0
        spans["flags"][named] = np.where(holds, SpanFlag.HOLDS_GIL, 0)
        cpu = copied(spans)
        cpu["count"][named[np.unique(places, return_index=True)[1]]] = 1  # a sample counts in its first piece
        self._place(cpu, at_ns, length)
        yield picked(cpu, length > 0)
        spans["count"] = 1
        at_ns = at_ns + length
        for state, ns in ((ThreadState.RUNQUEUE, stolen_ns), (ThreadState.UNKNOWN, unknown_ns)):
            spans["state"] = state
            self._place(spans, at_ns, ns)
            yield picked(spans, ns > 0)
            at_ns = at_ns + ns
        gap = np.flatnonzero(added_ns)
        gap = gap[np.argsort(spans["thread"][gap], kind="stable")]
        held: list[Spans] = []
        for own in np.split(gap, np.flatnonzero(np.diff(spans["thread"][gap])) + 1) if len(gap) else ():
            of_thread = sums[sums["thread"] == spans["thread"][own[0]]]
            for begin in range(0, len(own), _BLOCK_ROWS):
                part = own[begin : begin + _BLOCK_ROWS]
                held.append(self._added(at_ns[part], added_ns[part], of_thread))
                if sum(map(len, held)) > _BLOCK_ROWS:
                    yield one_after_another(SPAN_DTYPE, held)
                    held = []
        if held:
            yield one_after_another(SPAN_DTYPE, held)

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
    kept = picked(spans, (end > window[0]) & (begin < window[1]))
    begin, end = kept["start_ns"].clip(*window), (kept["start_ns"] + kept["duration_ns"]).clip(*window)
    kept["count"][kept["start_ns"] < begin] = 1
    kept["start_ns"], kept["duration_ns"], kept["stands_for_ns"] = begin, end - begin, end - begin
    return kept


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
