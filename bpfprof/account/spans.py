"""Recording -> spans: what each nanosecond of each thread was. The recording is not changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.columns import Columns
from bpfprof.account.cpu_clock import Bursts, left_ns
from bpfprof.account.cpu_shares import CpuPieces, share_cpu_time
from bpfprof.account.estimate import (
    LAID_GAPS,
    SUM_DTYPE,
    alike_as_one,
    estimated,
    laid,
    shared_out,
    spread_pieces,
    summed,
    without_preemptions,
)
from bpfprof.account.gil import GIL_WAIT_DTYPE, GilWaits, find_gil_waits, gil_waits
from bpfprof.account.groups import Group, groups_of
from bpfprof.account.idle import IDLE_REASONS, idle_stacks
from bpfprof.account.locks import Locks, ranges_of
from bpfprof.account.reason_namer import ReasonNamer
from bpfprof.account.reasons import FUTEX_CALLS, as_waits
from bpfprof.account.stack_functions import StackFunctions, function_paths
from bpfprof.account.threads import Int64Array, collect_threads
from bpfprof.account.wait_times import Times, wait_times
from bpfprof.account.wakers import waker_places
from bpfprof.account.window import Cut, Window
from bpfprof.model.ahead import LastMade, side_by_side
from bpfprof.model.rows import FiledRows, blocks, copied, copied_out, one_after_another, picked
from bpfprof.model.samples import HOLDS_GIL
from bpfprof.model.spans import SPAN_DTYPE, How, SpanFlag, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.model.statuses import Status
from bpfprof.recording.contents import Recording

Spans = npt.NDArray[np.void]
# (nanoseconds of gaps, sums, nanoseconds before, of all) -> gap, sum, nanoseconds into the gap, nanoseconds, count
_Spread = Callable[[Int64Array, Spans, int, int], tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]]
_BLOCK_ROWS = 1 << 16
_MOST_CELLS = 1 << 16  # of gaps times sums of short waits of a thread


class SpanSource:
    """The spans of one recording, a group of threads at a time. statuses: for each of its stacks by number, 0: none."""

    def __init__(self, recording: Recording, statuses: npt.NDArray[np.uint8]) -> None:
        self._recording, self._statuses = recording, statuses
        self.threads = threads = collect_threads(recording)
        waits = threads.waits
        namer = ReasonNamer(recording)
        self._last_times, self._last_bursts = LastMade[Group, Times](), LastMade[Group, tuple[Bursts, Spans]]()
        self._reasons = np.zeros(len(waits), np.uint16)
        self._unknown_ns: dict[Group, Int64Array] = {}  # of each thread, where it was asked for
        by_thread = [*groups_of(threads)]
        self.groups = [group for groups in by_thread for group in groups]
        of_gil = FiledRows(GIL_WAIT_DTYPE)
        all_blocks = ((group, block) for group in self.groups for block in threads.waits.blocks(group.waits))
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
        self._shares: dict[Group, tuple[Spans, Int64Array]] = {}
        for stretches in by_thread:
            self._share_sums(stretches)
        functions = StackFunctions(recording)
        self._is_idle, self._locks = idle_stacks(functions), Locks(functions)
        self._paths = function_paths(recording)

    def _share_sums(self, stretches: list[Group]) -> None:
        """Gives each stretch of a thread its part of what was only added up, by how much time of it that may be."""
        if len(stretches) == 1:
            return
        waits, thread = self.threads.waits, stretches[0].threads.start
        parts_ns = np.zeros(len(stretches), np.int64)
        for number, group in enumerate(stretches):
            begin_ns, _, end_ns = self._times(group)
            parts_ns[number] = left_ns(group, waits, begin_ns, end_ns)[0]
        shares = shared_out(parts_ns, of_one(self.sums, thread), int(self._preempted_ns[thread]))
        self._shares.update(zip(stretches, shares))

    def _name_waits(self, namer: ReasonNamer, where: tuple[Group, slice]) -> GilWaits:
        """GIL_WAIT_DTYPE of those of a block of a group of threads that wait for a GIL."""
        (group, block), waits = where, self.threads.waits
        first, (begin, woken, _) = group.waits.start, self._times(group)
        rows = waits.rows(block)
        reasons = self._reasons[block] = namer.reasons(rows)
        own = np.flatnonzero(reasons == reason_number("gil"))
        place = own + block.start
        return gil_waits(rows.picked(own), place, begin[place - first], woken[place - first])

    def overlaps_ns(self) -> Int64Array:
        """What the recording has of each thread beyond its spans: 0 unless it is damaged."""
        threads = self.threads
        if not self._recording.end:
            return np.zeros(len(threads.first_ns), np.int64)
        held_ns = threads.on_cpu_ns + threads.off_cpu_ns + _added_ns(self.sums, range(len(threads.first_ns)))
        held_ns += self._preempted_ns - (threads.last_ns - threads.first_ns)
        for group in self.groups:
            if group not in self._unknown_ns:
                self._bursts(group)
            held_ns[group.places] += self._unknown_ns[group]
        return np.asarray(held_ns)

    def is_inside(self, group: Group, window: Window | None) -> bool:
        """Whether some of its time may be."""
        return bool(self._cut_to(window).has(group.first_ns, group.last_ns).any())

    def of_group(self, group: Group, window: Window | None = None) -> Iterator[Spans]:
        """All spans of a group, in any order, a bounded number of waits at a time; those of a window cut to it."""

        def blocks() -> Iterator[Spans]:
            for block in (*self._waits(group, window), *self._bursts_cut(group, window)):
                yield block if window is None else _cut(block, window)

        return estimated(blocks) if self._has_unsampled(group) else blocks()

    def _has_unsampled(self, group: Group) -> bool:
        return bool(
            self._sums_of(group)["is_unsampled"].any()
            or (self.threads.waits.column("status", group.waits) == Status.NOT_SAMPLED).any()
        )

    # --- waits with a row

    def _waits(self, group: Group, window: Window | None) -> Iterator[Spans]:
        for own, (begin_ns, woken_ns, end_ns) in self._blocks_inside(group, self._cut_to(window)):
            yield self._blocked(own, begin_ns, woken_ns)
            yield self._runnable(own, woken_ns, end_ns)

    def _blocks_inside(self, group: Group, cut: Cut) -> Iterator[tuple[slice, Times]]:
        """(places of waits with a row, when they began, were woken and ended), in blocks, as far as some are inside."""
        first, times = group.waits.start, self._times(group)
        for block in self.threads.waits.blocks(group.waits):
            begin_ns, woken_ns, end_ns = (column[block.start - first : block.stop - first] for column in times)
            inside = np.flatnonzero(cut.has(begin_ns, end_ns))
            if len(inside):
                begin, end = int(inside[0]), int(inside[-1]) + 1
                own = slice(block.start + begin, block.start + end)
                yield own, (begin_ns[begin:end], woken_ns[begin:end], end_ns[begin:end])

    def _cut_to(self, window: Window | None) -> Cut:
        return Cut.of(window, self.threads.start_ns)

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

    def _sums_of(self, group: Group) -> Spans:
        if group in self._shares:
            return self._shares[group][0]
        return self.sums[slice(*np.searchsorted(self.sums["thread"], (group.threads.start, group.threads.stop)))]

    def _times(self, group: Group) -> Times:
        return self._last_times.of(group, partial(wait_times, self.threads.waits))

    def _bursts(self, group: Group) -> tuple[Bursts, Spans]:
        return self._last_bursts.of(group, self._bursts_of)

    def _bursts_of(self, group: Group) -> tuple[Bursts, Spans]:
        """(the time between waits with a row, rows of SUM_DTYPE of the waits in it, by thread).

        Sums that an unfinished recording does not have any more are waits for an unknown reason.
        """
        sums, (begin_ns, _, end_ns) = self._sums_of(group), self._times(group)
        preempted_ns = self._shares[group][1] if group in self._shares else self._preempted_ns[group.places]
        args, has_no_end = (group, self.threads.waits, begin_ns, end_ns, preempted_ns), not self._recording.end
        bursts = Bursts.of_group(*args, _added_ns(sums, group.threads), has_no_end)
        missing_ns = self._unknown_ns[group] = np.add.reduceat(bursts.unknown_ns, bursts.first[:-1])
        if has_no_end and missing_ns.any():
            of_thread = np.flatnonzero(missing_ns)
            unheard = np.zeros(len(of_thread), SUM_DTYPE)
            unheard["thread"], unheard["ns"] = group.threads.start + of_thread, missing_ns[of_thread]
            unheard["reason"], unheard["state"] = reason_number("unknown"), ThreadState.OFF_CPU
            sums = np.append(sums, unheard)
            sums = sums[np.argsort(sums["thread"], kind="stable")]
            bursts = Bursts.of_group(*args, _added_ns(sums, group.threads))
        return bursts, sums

    def _pieces(self, group: Group, bursts: Bursts) -> CpuPieces:
        """CPU time of all threads on their clocks, shared out over their samples; `sample` is a place."""
        threads = self.threads
        period_ns = int(1e9 / max(1, int(self._recording.start.get("rate_hz", 0) or 1)))
        # A burst began with the stack of the wait before it and ended with that of the wait after it.
        paths = self._paths[threads.waits.column("stack", group.waits)]
        groups = np.zeros(len(bursts.thread), np.int64)
        groups[bursts.before_wait] = paths
        groups[bursts.before_wait + 1] += paths * len(self._paths)
        own, begin = group.samples, group.sample_begin - group.sample_begin[0]
        of_thread = np.repeat(np.arange(len(group.threads)), np.diff(begin))
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

    def _pieces_in(self, group: Group, bursts: Bursts) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """(position, length, sample or -1, burst) of pieces of CPU time; of bursts without any there is one of none."""
        pieces = self._pieces(group, bursts)
        empty = np.flatnonzero(np.diff(bursts.edges) == 0)
        none = np.zeros(len(empty), np.int64)
        return (
            np.concatenate([pieces.start, bursts.edges[empty]]),
            np.concatenate([pieces.length, none]),
            np.concatenate([pieces.sample, none - 1]),
            np.append(np.searchsorted(bursts.edges, pieces.start, side="right") - 1, empty),
        )

    def _bursts_cut(self, group: Group, window: Window | None) -> Iterator[Spans]:
        """CPU time by samples, and what is between: what others took, waits only added up, what is not known."""
        samples, (bursts, sums) = self.threads.samples, self._bursts(group)
        position, length, sample, burst = self._pieces_in(group, bursts)
        at_ns, taken_ns, added_ns, unknown_ns = bursts.wall_clock(position, length, burst)
        counts = np.zeros(len(sample), np.int64)
        named = np.flatnonzero(sample >= 0)
        counts[named[np.unique(sample[named], return_index=True)[1]]] = 1  # a sample counts in its first piece
        thread, added_at_ns = group.threads.start + bursts.thread[burst], at_ns + length + taken_ns + unknown_ns
        inside = np.arange(len(at_ns))
        if window is not None:
            inside = np.flatnonzero(self._cut_to(window).has(at_ns, added_at_ns))
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
        yield from self._gaps_filled(sums, thread[gap], added_at_ns[gap], added_ns[gap], self._cut_to(window))

    def _gaps_filled(
        self, sums: Spans, thread: Int64Array, at_ns: Int64Array, added_ns: Int64Array, cut: Cut
    ) -> Iterator[Spans]:
        """Waits that were only added up, in gaps from at_ns on, by thread and time; what is cut has less of each."""
        held: list[Spans] = []
        begin_ns, before_ns = cut.times(at_ns), cut.before_ns(at_ns, added_ns)
        inside_ns = cut.times(at_ns + added_ns) - begin_ns
        for own in np.split(np.arange(len(thread)), np.flatnonzero(np.diff(thread)) + 1) if len(thread) else ():
            of_thread = of_one(sums, int(thread[own[0]]))
            all_ns, passed_ns = int(added_ns[own].sum()), int(before_ns[own].sum())
            own = own[inside_ns[own] > 0]
            ends_ns = np.append(passed_ns, passed_ns + np.cumsum(inside_ns[own]))
            step, spread_out = self._spread_by(len(own), len(of_thread))
            for begin in range(0, len(own), step):
                part, passed = own[begin : begin + step], (int(ends_ns[begin]), all_ns)
                held.append(self._added(begin_ns[part], of_thread, *spread_out(inside_ns[part], of_thread, *passed)))
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


def _added_ns(sums: Spans, threads: range) -> Int64Array:
    """All of the sums of each of these threads, which have no others."""
    added_ns = np.zeros(len(threads), np.int64)
    np.add.at(added_ns, sums["thread"].astype(np.int64) - threads.start, sums["ns"])
    return added_ns


def _cut(spans: Spans, window: Window) -> Spans:
    """Spans of a window; what was under way when it began counts there."""
    begin, end = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    kept = picked(spans, (end > window[0]) & (begin < window[1]))
    begin, end = kept["start_ns"].clip(*window), (kept["start_ns"] + kept["duration_ns"]).clip(*window)
    kept["count"][kept["start_ns"] < begin] = 1
    kept["start_ns"], kept["duration_ns"], kept["stands_for_ns"] = begin, end - begin, end - begin
    return kept
