"""Recording -> spans: what each nanosecond of each thread was. The recording is not changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.columns import Columns
from bpfprof.account.cpu_clock import Bursts
from bpfprof.account.cpu_shares import CpuPieces, share_cpu_time
from bpfprof.account.estimate import (
    LAID_GAPS,
    SUM_DTYPE,
    alike_as_one,
    estimated,
    laid,
    spread_pieces,
    summed,
    without_preemptions,
)
from bpfprof.account.gil import GIL_WAIT_DTYPE, GilWaits, find_gil_waits, gil_waits
from bpfprof.account.idle import IDLE_REASONS, idle_stacks
from bpfprof.account.locks import Locks, ranges_of
from bpfprof.account.reason_namer import ReasonNamer
from bpfprof.account.reasons import FUTEX_CALLS, as_waits
from bpfprof.account.stack_functions import StackFunctions, function_paths
from bpfprof.account.threads import Int64Array, collect_threads
from bpfprof.account.wait_times import Times, wait_times
from bpfprof.account.wakers import waker_places
from bpfprof.model.ahead import LastMade, side_by_side
from bpfprof.model.rows import FiledRows, blocks, copied, copied_out, one_after_another, picked
from bpfprof.model.samples import HOLDS_GIL
from bpfprof.model.spans import SPAN_DTYPE, How, SpanFlag, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.model.statuses import Status
from bpfprof.recording.contents import Recording

Window = tuple[int, int]  # from, to: nanoseconds since the recording began
Spans = npt.NDArray[np.void]
# (nanoseconds of gaps, sums, nanoseconds before, of all) -> gap, sum, nanoseconds into the gap, nanoseconds, count
_Spread = Callable[[Int64Array, Spans, int, int], tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]]
_BLOCK_ROWS = 1 << 16
_MOST_NS = 1 << 60
_MOST_CELLS = 1 << 16  # of gaps times sums of short waits of a thread


class SpanSource:
    """The spans of one recording, some threads at a time. statuses: for each of its stacks by number, 0: none."""

    def __init__(self, recording: Recording, statuses: npt.NDArray[np.uint8]) -> None:
        self._recording, self._statuses = recording, statuses
        self.threads = threads = collect_threads(recording)
        waits = threads.waits
        namer = ReasonNamer(recording)
        self._last_times, self._last_bursts = LastMade[range, Times](), LastMade[range, tuple[Bursts, Spans]]()
        self._reasons = np.zeros(len(waits), np.uint16)
        self._unknown_ns = np.full(len(threads.first_ns), -1)  # of each thread, from when that is known
        of_gil = FiledRows(GIL_WAIT_DTYPE)
        all_blocks = ((group, block) for group in self.groups() for block in threads.waits.blocks(group))
        for rows in side_by_side(partial(self._name_waits, namer), all_blocks, recording.is_large):
            of_gil.append(rows)
        self._is_first, self._held = find_gil_waits(recording, of_gil.view(), len(waits))
        del of_gil
        self._wait_number = np.cumsum(self._is_first, dtype=np.uint32)
        short = alike_as_one(recording.short_waits)
        short, self._preempted_ns = without_preemptions(short, len(threads.first_ns))
        parts = [namer.reasons(as_waits(rows)) for rows in blocks(short)]
        reasons = np.concatenate([np.zeros(0, np.uint16), *parts])
        self.sums = summed(short, reasons)
        functions = StackFunctions(recording)
        self._is_idle, self._locks = idle_stacks(functions), Locks(functions)
        self._paths = function_paths(recording)

    def _name_waits(self, namer: ReasonNamer, where: tuple[range, slice]) -> GilWaits:
        """GIL_WAIT_DTYPE of those of a block of a group of threads that wait for a GIL."""
        (group, block), waits = where, self.threads.waits
        first, (begin, woken, _) = waits.of_threads(group).start, self._times(group)
        rows = waits.rows(block)
        reasons = self._reasons[block] = namer.reasons(rows)
        own = np.flatnonzero(reasons == reason_number("gil"))
        place = own + block.start
        return gil_waits(rows.picked(own), place, begin[place - first], woken[place - first])

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
        if (self._unknown_ns[own] < 0).any():
            self._bursts(chosen)
        held_ns = threads.on_cpu_ns[own] + threads.off_cpu_ns[own] + self._added_ns(chosen, self._sums_of(chosen))
        held_ns += self._preempted_ns[own]
        wall_ns = (threads.last_ns - threads.first_ns)[own]
        return np.asarray(held_ns - (wall_ns - self._unknown_ns[own]))

    def of_thread(self, thread: int, window: Window | None = None) -> Iterator[Spans]:
        """All spans of a thread, in any order, a bounded number of waits at a time; those of a window cut to it."""
        return self.of_threads(range(thread, thread + 1), window)

    def of_threads(self, chosen: range, window: Window | None = None) -> Iterator[Spans]:
        """The same of the threads of a group, in any order."""

        def blocks() -> Iterator[Spans]:
            for block in (*self._waits(chosen, window), *self._bursts_cut(chosen, window)):
                yield block if window is None else _cut(block, window)

        return estimated(blocks) if self._has_unsampled(chosen) else blocks()

    def _has_unsampled(self, chosen: range) -> bool:
        own = self.threads.waits.of_threads(chosen)
        return bool(
            self._sums_of(chosen)["is_unsampled"].any()
            or (self.threads.waits.column("status", own) == Status.NOT_SAMPLED).any()
        )

    # --- waits with a row

    def _waits(self, chosen: range, window: Window | None) -> Iterator[Spans]:
        first, times = self.threads.waits.of_threads(chosen).start, self._times(chosen)
        for own in self.threads.waits.blocks(chosen):
            begin_ns, woken_ns, end_ns = (column[own.start - first : own.stop - first] for column in times)
            if window is not None:
                inside = np.flatnonzero(self._is_inside(begin_ns, end_ns, window))
                if not len(inside):
                    continue
                part = slice(int(inside[0]), int(inside[-1]) + 1)
                own = slice(own.start + part.start, own.start + part.stop)
                begin_ns, woken_ns, end_ns = begin_ns[part], woken_ns[part], end_ns[part]
            yield self._blocked(own, begin_ns, woken_ns)
            yield self._runnable(own, woken_ns, end_ns)

    def _is_inside(self, begin_ns: Int64Array, end_ns: Int64Array, window: Window) -> npt.NDArray[np.bool_]:
        """Whether these times have a part in the window, which counts from the begin of the recording."""
        start_ns = self.threads.start_ns
        return np.asarray((end_ns > start_ns + window[0]) & (begin_ns < start_ns + window[1]))

    def _common(self, own: slice) -> Spans:
        spans = self._spans_of(self.threads.waits.rows(own), self._reasons[own])
        spans["wait"], spans["count"] = self._wait_number[own], self._is_first[own]
        return spans

    def _spans_of(self, rows: Columns, reasons: npt.NDArray[np.uint16]) -> Spans:
        """Of rows of waits what blocked and runnable spans have in common."""
        spans = np.zeros(len(rows), SPAN_DTYPE)
        for name in ("thread", "stack", "task_state", "one_in"):
            spans[name] = rows[name]
        spans["status"] = self._status(rows["stack"], rows["status"])
        spans["flags"] = np.where(rows["flags"] & HOLDS_GIL > 0, SpanFlag.HOLDS_GIL, 0)
        spans["reason"] = reasons
        return spans

    def _locks_of(self, rows: Columns, reasons: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint64]:
        """`lock` of the spans of these rows of waits."""
        found = np.zeros(len(rows), np.uint64)
        places = np.flatnonzero(reasons == reason_number("lock"))
        places = places[np.isin(rows["syscall"][places], FUTEX_CALLS)]
        of_locks = rows.picked(places)
        found[places] = self._locks.of(of_locks["args"], of_locks["stack"], of_locks["waker_stack"])
        places = np.flatnonzero(reasons == reason_number("file-lock"))
        found[places] = ranges_of(rows["args"][places])
        return found

    def _idle_flags(self, stacks: npt.NDArray[np.uint32], reasons: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
        may_idle = np.isin(reasons, [reason_number(word) for word in IDLE_REASONS])
        return np.where(may_idle & self._is_idle[stacks], SpanFlag.IDLE, 0).astype(np.uint8)

    def _status(self, stacks: npt.NDArray[Any], statuses: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        return np.where(stacks > 0, self._statuses[stacks], statuses).astype(np.uint8)

    def _blocked(self, own: slice, begin_ns: Int64Array, woken_ns: Int64Array) -> Spans:
        rows, spans = self.threads.waits.rows(own), self._common(own)
        spans["state"] = ThreadState.OFF_CPU
        spans["lock"] = self._locks_of(rows, spans["reason"])
        spans["object"] = rows["object"]
        spans["flags"] |= self._idle_flags(spans["stack"], spans["reason"])
        spans["waker"] = waker_places(self._recording, rows, spans["reason"], woken_ns - begin_ns)
        spans["waker_stack"] = rows["waker_stack"]
        self._place(spans, begin_ns, woken_ns - begin_ns)
        held = self._held_in(own)
        if not len(held):
            return picked(spans, spans["duration_ns"] > 0)
        parts = picked(spans, held["place"] - own.start)
        self._place(parts, held["start_ns"], held["ns"])
        parts["holder"], parts["holder_stack"] = held["holder"], held["stack"]
        parts["count"][1:][np.diff(held["place"]) == 0] = 0
        spans["duration_ns"][held["place"] - own.start] = 0  # the parts are in their place
        return one_after_another(SPAN_DTYPE, [parts, picked(spans, spans["duration_ns"] > 0)])

    def _held_in(self, own: slice) -> Spans:
        return copied_out(self._held[slice(*np.searchsorted(self._held["place"], (own.start, own.stop)))])

    def _runnable(self, own: slice, woken_ns: Int64Array, end_ns: Int64Array) -> Spans:
        spans = self._common(own)
        spans["state"] = ThreadState.RUNQUEUE
        self._place(spans, woken_ns, end_ns - woken_ns)
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

    def _times(self, group: range) -> Times:
        return self._last_times.of(group, partial(wait_times, self.threads))

    def _bursts(self, chosen: range) -> tuple[Bursts, Spans]:
        return self._last_bursts.of(chosen, self._bursts_of)

    def _bursts_of(self, chosen: range) -> tuple[Bursts, Spans]:
        """(the time between waits with a row, rows of SUM_DTYPE of the waits in it, by thread).

        Sums that an unfinished recording does not have any more are waits for an unknown reason.
        """
        sums, (begin_ns, _, end_ns) = self._sums_of(chosen), self._times(chosen)
        preempted_ns, has_no_end = self._preempted_ns[chosen.start : chosen.stop], not self._recording.end
        args = chosen, self.threads, begin_ns, end_ns, preempted_ns
        bursts = Bursts.of_threads(*args, self._added_ns(chosen, sums), has_no_end)
        missing_ns = np.add.reduceat(bursts.unknown_ns, bursts.first[:-1])
        self._unknown_ns[chosen.start : chosen.stop] = missing_ns
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

    def _pieces_in(self, chosen: range, bursts: Bursts) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """(position, length, sample or -1, burst) of pieces of CPU time; of bursts without any there is one of none."""
        pieces = self._pieces(chosen, bursts)
        empty = np.flatnonzero(np.diff(bursts.edges) == 0)
        none = np.zeros(len(empty), np.int64)
        return (
            np.concatenate([pieces.start, bursts.edges[empty]]),
            np.concatenate([pieces.length, none]),
            np.concatenate([pieces.sample, none - 1]),
            np.append(np.searchsorted(bursts.edges, pieces.start, side="right") - 1, empty),
        )

    def _bursts_cut(self, chosen: range, window: Window | None) -> Iterator[Spans]:
        """CPU time by samples, and what is between: what others took, waits only added up, what is not known."""
        samples, (bursts, sums) = self.threads.samples, self._bursts(chosen)
        position, length, sample, burst = self._pieces_in(chosen, bursts)
        at_ns, taken_ns, added_ns, unknown_ns = bursts.wall_clock(position, length, burst)
        counts = np.zeros(len(sample), np.int64)
        named = np.flatnonzero(sample >= 0)
        counts[named[np.unique(sample[named], return_index=True)[1]]] = 1  # a sample counts in its first piece
        thread, added_at_ns = chosen.start + bursts.thread[burst], at_ns + length + taken_ns + unknown_ns
        inside = np.arange(len(at_ns))
        if window is not None:
            inside = np.flatnonzero(self._is_inside(at_ns, added_at_ns, window))
        spans = np.zeros(len(inside), SPAN_DTYPE)
        spans["thread"], spans["status"] = thread[inside], Status.NOT_SAMPLED
        at_ns, length, sample = at_ns[inside], length[inside], sample[inside]
        named = np.flatnonzero(sample >= 0)
        places = sample[named]
        spans["stack"][named] = samples.column("stack", places)
        spans["status"][named] = self._status(spans["stack"][named], samples.column("status", places))
        holds = samples.column("flags", places) & HOLDS_GIL > 0
        spans["flags"][named] = np.where(holds, SpanFlag.HOLDS_GIL, 0)
        cpu = copied(spans)
        cpu["cpu"][named] = samples.column("cpu", places) + 1
        cpu["count"] = counts[inside]
        self._place(cpu, at_ns, length)
        yield picked(cpu, length > 0)
        spans["count"] = 1
        at_ns = at_ns + length
        for state, ns in ((ThreadState.RUNQUEUE, taken_ns[inside]), (ThreadState.UNKNOWN, unknown_ns[inside])):
            spans["state"] = state
            self._place(spans, at_ns, ns)
            yield picked(spans, ns > 0)
            at_ns = at_ns + ns
        gap = np.flatnonzero(added_ns)
        gap = gap[np.lexsort((added_at_ns[gap], thread[gap]))]
        yield from self._gaps_filled(sums, thread[gap], added_at_ns[gap], added_ns[gap], window)

    def _gaps_filled(
        self, sums: Spans, thread: Int64Array, at_ns: Int64Array, added_ns: Int64Array, window: Window | None
    ) -> Iterator[Spans]:
        """Waits that were only added up, in gaps from at_ns on, by thread and time."""
        held: list[Spans] = []
        for own in np.split(np.arange(len(thread)), np.flatnonzero(np.diff(thread)) + 1) if len(thread) else ():
            of_thread = of_one(sums, int(thread[own[0]]))
            passed_ns = np.append(0, np.cumsum(added_ns[own]))
            all_ns = int(passed_ns[-1])
            if window is not None:
                inside = np.flatnonzero(self._is_inside(at_ns[own], at_ns[own] + added_ns[own], window))
                if not len(inside):
                    continue
                first, end = int(inside[0]), int(inside[-1]) + 1
                own, passed_ns = own[first:end], passed_ns[first:end]
            step, cut = self._spread_by(len(own), len(of_thread))
            for begin in range(0, len(own), step):
                part, passed = own[begin : begin + step], (int(passed_ns[begin]), all_ns)
                held.append(self._added(at_ns[part], of_thread, *cut(added_ns[part], of_thread, *passed)))
                if sum(map(len, held)) > _BLOCK_ROWS:
                    yield one_after_another(SPAN_DTYPE, held)
                    held = []
        if held:
            yield one_after_another(SPAN_DTYPE, held)

    def _spread_by(self, gaps: int, sums: int) -> tuple[int, _Spread]:
        """(gaps at a time, how they are filled): each has a part of each sum, unless these would be too many."""
        is_large, most = gaps * sums > _MOST_CELLS and sums > 1, _BLOCK_ROWS // sums or 1
        return (LAID_GAPS * sums * most, laid) if is_large else (most, spread_pieces)

    def _added(
        self,
        at_ns: Int64Array,
        sums: Spans,
        gap: Int64Array,
        which: Int64Array,
        into_ns: Int64Array,
        ns: Int64Array,
        count: Int64Array,
    ) -> Spans:
        spans = np.zeros(len(gap), SPAN_DTYPE)
        self._place(spans, at_ns[gap] + into_ns, ns)
        spans["count"] = count
        for name in ("thread", "reason", "state"):
            spans[name] = sums[name][which]
        spans["status"] = np.where(sums["is_unsampled"][which], Status.NOT_SAMPLED, Status.SHORT_WAIT)
        spans["how"] = How.SUMMED
        return spans


def of_one(rows: Spans, thread: int) -> Spans:
    """Of rows by thread those of one."""
    return rows[slice(*np.searchsorted(rows["thread"], (thread, thread + 1)))]


def _cut(spans: Spans, window: Window) -> Spans:
    """Spans of a window; what was under way when it began counts there."""
    begin, end = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    kept = picked(spans, (end > window[0]) & (begin < window[1]))
    begin, end = kept["start_ns"].clip(*window), (kept["start_ns"] + kept["duration_ns"]).clip(*window)
    kept["count"][kept["start_ns"] < begin] = 1
    kept["start_ns"], kept["duration_ns"], kept["stands_for_ns"] = begin, end - begin, end - begin
    return kept
