"""The spans of one recording, those that nothing but their time tells apart as one, which is made without each of them.

Where the order in time does not matter that is a part of the work. The times of waits come beside.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.columns import Columns
from bpfprof.account.cpu_clock import Bursts
from bpfprof.account.estimate import estimated, spread_by_thread
from bpfprof.account.groups import Group
from bpfprof.account.pieces import Gaps, in_order, is_first_of_samples, pieces_of
from bpfprof.account.running import Running, running_times
from bpfprof.account.spans import Spans, SpanSource
from bpfprof.account.threads import Int64Array
from bpfprof.account.wakers import waker_places
from bpfprof.account.window import Cut, Window
from bpfprof.model.grouping import first_of, grouped, numbers_of, sums_by
from bpfprof.model.rows import copied, one_after_another, picked
from bpfprof.model.samples import HOLDS_GIL
from bpfprof.model.spans import PIECE_DTYPE, SPAN_DTYPE, WAIT_TIME_DTYPE, SpanFlag, ThreadState
from bpfprof.model.statuses import Status

Bools = npt.NDArray[np.bool_]
_OF_BURSTS = ThreadState.ON_CPU, ThreadState.RUNQUEUE, ThreadState.UNKNOWN
_PIECES = 1 << 18  # of CPU time that are added up at a time
_PARKED_PART = 0.95  # of a thread's time: a wait of so much is a span of its own


class Wanted(NamedTuple):
    """has_whole: a wait for a GIL, which comes as many rows and parts, is as whole as others: it has the stack of its
    first row and the waker of its last, and one time, which ends with it and refers to the span of its first part.

    together_ns: pieces of one span that are no waits with a row are one where they begin in the same part of the time,
    of which each is so long; 0: each is by itself. min_block_ns: of a span's waits all are so long, or none is.
    window: what is before or after it is no part of a span; a wait that was under way when it began counts.
    """

    has_whole: bool = False
    with_pieces: bool = False
    together_ns: int = 0
    min_block_ns: int = 0
    window: Window | None = None


_SINGLE_TIMES = Wanted()


class AddedUp(NamedTuple):
    """longest_ns: for each span the longest wait of those that it is made of, as far as their times are known.

    is_parked: whether that is nearly all time of its thread; no other wait is part of the span then. times:
    WAIT_TIME_DTYPE, in the order of threads and time, of all waits that have a row; None: the spans are single. pieces:
    PIECE_DTYPE, of all that the spans are made of, if they were asked for: in the same order, if each is by itself.
    """

    spans: Spans
    longest_ns: Int64Array
    is_parked: Bools
    times: Spans | None = None
    pieces: Spans | None = None


class _Part(NamedTuple):
    """pieces: by time, one kind after the other."""

    spans: Spans
    longest_ns: Int64Array
    times: Spans
    pieces: list[Spans]


class AddingSource(SpanSource):
    """The same source of spans."""

    def added_up(self, group: Group, wanted: Wanted = _SINGLE_TIMES) -> AddedUp:
        """Of a group, in any order."""
        # First, for this needs more memory than it leaves.
        of_bursts, cut = self._bursts_added_up(group, wanted), self._cut_to(wanted.window)
        parts: list[_Part] = []
        count = 0
        for own, of_block in self._blocks_inside(group, cut):
            for part in self._waits_added_up(own, wanted, *of_block):
                part.times["span"] += count
                for pieces in part.pieces:
                    pieces["span"] += count
                count += len(part.spans)
                parts.append(part)
        for pieces in of_bursts.pieces:
            pieces["span"] += count
        parts.append(of_bursts)
        spans = one_after_another(SPAN_DTYPE, [part.spans for part in parts])
        if self._has_unsampled(group):
            (spans,) = estimated(lambda: iter([spans]))
        longest_ns = np.concatenate([part.longest_ns for part in parts])
        of_waits = one_after_another(WAIT_TIME_DTYPE, [part.times for part in parts])
        made = AddedUp(spans, longest_ns, self._are_parked(spans["thread"], longest_ns, cut), of_waits)
        if not wanted.with_pieces:
            return made
        pieces = one_after_another(PIECE_DTYPE, [piece for part in parts for piece in part.pieces])
        del parts
        return made._replace(pieces=pieces if wanted.together_ns else in_order(pieces, spans))

    def with_single_waits(self, group: Group) -> Spans:
        """Of a group, in any order: one for each wait with a row, and what else there is added up."""
        spans = one_after_another(
            SPAN_DTYPE, [*self._waits(group, None), self._bursts_added_up(group, _SINGLE_TIMES).spans]
        )
        if self._has_unsampled(group):
            (spans,) = estimated(lambda: iter([spans]))
        return spans

    def running(self, group: Group, is_shown: Bools) -> Running:
        """When those threads of a group that are shown were runnable and on a CPU."""
        (bursts, sums), (_, woken_ns, end_ns) = self._bursts(group), self._times(group)
        return running_times(group.threads, is_shown, bursts, sums, woken_ns, end_ns)

    def _are_parked(self, threads: npt.NDArray[np.uint32], ns: Int64Array, cut: Cut) -> Bools:
        """Whether waits of these threads that last so long are nearly all of their time."""
        wall_ns = cut.times(self.threads.last_ns) - cut.times(self.threads.first_ns)
        return np.asarray(ns >= _PARKED_PART * wall_ns[threads])

    def _waits_added_up(
        self, own: slice, wanted: Wanted, begin_ns: Int64Array, woken_ns: Int64Array, end_ns: Int64Array
    ) -> list[_Part]:
        """Blocked and runnable ones of a block of rows."""
        has_whole, with_pieces, min_block_ns = wanted.has_whole, wanted.with_pieces, wanted.min_block_ns
        rows, reasons, waits = self.threads.waits.rows(own), self._reasons[own], self._wait_number[own]
        wakers = waker_places(self._recording, rows, reasons, woken_ns - begin_ns)
        locks, cut = self._locks_of(rows, reasons), self._cut_to(wanted.window)
        if has_whole:
            rows, wakers = _as_whole(rows, wakers, waits, cut.has(begin_ns, woken_ns))
        counts, ready_counts = (
            self._is_first[own] | cut.begins_in(*times) for times in ((begin_ns, woken_ns), (woken_ns, end_ns))
        )
        begin_ns, woken_ns, end_ns = map(cut.times, (begin_ns, woken_ns, end_ns))
        blocked_ns, ready_ns = woken_ns - begin_ns, end_ns - woken_ns
        names = ("thread", "stack", "waker_stack", "object", "status", "one_in", "task_state")
        columns = [rows[name] for name in names]
        alike = rows["flags"] & HOLDS_GIL, self._are_parked(rows["thread"], blocked_ns, cut), blocked_ns >= min_block_ns
        order, begin = grouped([*columns, reasons, wakers, locks, *alike])
        first = first_of(order, begin)
        kinds = self._spans_of(rows.picked(first), reasons[first])
        kinds["wait"] = waits[first]
        kinds["start_ns"] = np.minimum.reduceat(begin_ns[order], begin) - self.threads.start_ns
        ready = copied(kinds)
        ready["state"] = ThreadState.RUNQUEUE
        _sum(ready, ready_ns[order], (ready_counts & (ready_ns > 0))[order], begin)
        blocked = kinds
        blocked["state"] = ThreadState.OFF_CPU
        for name in ("object", "waker_stack"):
            blocked[name] = rows[name][first]
        blocked["waker"], blocked["lock"] = wakers[first], locks[first]
        blocked["flags"] |= self._idle_flags(blocked["stack"], blocked["reason"])
        number, (held, held_counts) = numbers_of(order, begin), self._held_inside(own, cut)
        blocked_ns[self._held_in(own)["place"] - own.start] = 0  # the parts are in their place
        place = held["place"] - own.start
        of_gil, gil_number = _gil_part(blocked, number[place], held, held_counts, waits[place], min_block_ns)
        _sum(blocked, blocked_ns[order], (counts & (blocked_ns > 0))[order], begin)
        timed = np.flatnonzero(blocked_ns)
        held_ns, held_end_ns, first = held["ns"], held["start_ns"] + held["ns"], np.arange(len(held))
        if has_whole and len(held):
            first = np.flatnonzero(np.diff(waits[place].astype(np.int64), prepend=-1))
            held_ns = np.add.reduceat(held_ns, first)
            held_end_ns = held_end_ns[np.append(first[1:], len(held)) - 1]
        times = np.zeros(len(timed) + len(first), WAIT_TIME_DTYPE)
        times["start_ns"] = np.append(begin_ns[timed], held_end_ns - held_ns) - self.threads.start_ns
        times["duration_ns"] = np.append(blocked_ns[timed], held_ns)
        times["span"] = np.append(number[timed], len(blocked) + gil_number[first])
        if len(first):
            times = picked(times, np.argsort(np.append(timed, place[first]), kind="stable"))
        longest_ns, longest_ready_ns = (np.maximum.reduceat(ns[order], begin) for ns in (blocked_ns, ready_ns))
        both = one_after_another(SPAN_DTYPE, [blocked, of_gil.spans])
        of_blocked, of_ready = list[Spans](), list[Spans]()
        if with_pieces:
            of_blocked.append(self._pieces_of_waits(begin_ns, blocked_ns, number, waits, counts))
            of_ready.append(self._pieces_of_waits(woken_ns, ready_ns, number, waits, ready_counts))
        if with_pieces and len(held):
            parts = np.zeros(len(held), PIECE_DTYPE)
            parts["start_ns"], parts["duration_ns"] = held["start_ns"] - self.threads.start_ns, held["ns"]
            parts["span"], parts["holder"] = len(blocked) + gil_number, held["holder"]
            parts["wait"], parts["count"] = waits[place], held_counts
            of_blocked.append(parts)
        return [
            _Part(both, np.append(longest_ns, of_gil.longest_ns), times, of_blocked),
            _Part(ready, longest_ready_ns, times[:0], of_ready),
        ]

    def _pieces_of_waits(
        self,
        start_ns: Int64Array,
        ns: Int64Array,
        span: npt.NDArray[np.intp],
        wait: npt.NDArray[np.uint32],
        counts: Bools,
    ) -> Spans:
        timed = np.flatnonzero(ns)
        pieces = np.zeros(len(timed), PIECE_DTYPE)
        pieces["start_ns"], pieces["duration_ns"] = start_ns[timed] - self.threads.start_ns, ns[timed]
        pieces["span"], pieces["wait"], pieces["count"] = span[timed], wait[timed], counts[timed]
        return pieces

    def _held_inside(self, own: slice, cut: Cut) -> tuple[Spans, Bools]:
        """(parts of waits for a GIL, whether each counts), as far as they are inside."""
        held = self._held_in(own)
        start_ns, end_ns = held["start_ns"], held["start_ns"] + held["ns"]
        counts = self._is_first[held["place"]] & (np.diff(held["place"], prepend=-1) > 0)
        counts |= cut.begins_in(start_ns, end_ns)
        held["start_ns"], end_ns = cut.times(start_ns), cut.times(end_ns)
        held["ns"] = end_ns - held["start_ns"]
        is_inside = held["ns"] > 0
        return picked(held, is_inside), counts[is_inside]

    def _bursts_added_up(self, group: Group, wanted: Wanted) -> _Part:
        """A span for each sample and state, and of each thread what no sample speaks for."""
        samples, (bursts, sums) = self.threads.samples, self._bursts(group)
        all_pieces, cut = self._pieces_in(group, bursts), self._cut_to(wanted.window)
        gaps = Gaps(len(group.threads), cut, wanted.together_ns if wanted.with_pieces else None)
        chosen, own = group.threads, group.samples
        # First a cell for each thread, then for each sample.
        count = len(chosen) + own.stop - own.start
        cells = np.zeros(count, SPAN_DTYPE)
        cells["thread"] = np.append(np.arange(chosen.start, chosen.stop), samples.column("thread", own))
        cells["status"] = Status.NOT_SAMPLED
        named = cells[len(chosen) :]
        named["stack"] = samples.column("stack", own)
        named["status"] = self._status(named["stack"], samples.column("status", own))
        named["flags"] = np.where(samples.column("flags", own) & HOLDS_GIL > 0, SpanFlag.HOLDS_GIL, 0)
        cells["start_ns"] = (self.threads.last_ns - self.threads.start_ns)[cells["thread"].astype(np.int64)]
        total_ns, counts, longest_ns = np.zeros((3, len(_OF_BURSTS), count), np.int64)
        pieces, seen = list[Spans](), np.zeros(own.stop - own.start, np.bool_)
        for begin in range(0, len(all_pieces[0]), _PIECES):  # of a thread there may be very many
            position, length, sample, burst = (column[begin : begin + _PIECES] for column in all_pieces)
            at_ns, taken_ns, added_ns, unknown_ns = bursts.wall_clock(position, length, burst)
            thread, end_ns = bursts.thread[burst], at_ns + length + taken_ns + unknown_ns
            gaps.add(thread, end_ns, added_ns)
            cell = np.where(sample >= 0, sample - own.start + len(chosen), thread)
            counted = np.ones((len(_OF_BURSTS), len(cell)), np.bool_)
            counted[0] = is_first_of_samples(sample, seen, own.start)
            inside = np.flatnonzero(cut.has(at_ns, end_ns))
            if len(inside) < len(cell):
                of_bursts = cell, at_ns, length, taken_ns, unknown_ns, sample
                cell, at_ns, length, taken_ns, unknown_ns, sample = (column[inside] for column in of_bursts)
                counted = counted[:, inside]
            np.minimum.at(cells["start_ns"], cell, cut.times(at_ns) - self.threads.start_ns)
            for number, ns in enumerate((length, taken_ns, unknown_ns)):
                begin_ns, is_counted = cut.times(at_ns), counted[number] | cut.begins_in(at_ns, at_ns + ns)
                at_ns = at_ns + ns
                ns = cut.times(at_ns) - begin_ns
                total_ns[number] += sums_by(cell, ns, count)
                counts[number] += np.bincount(cell[is_counted & (ns > 0)], minlength=count)
                np.maximum.at(longest_ns[number], cell, ns)
                if wanted.with_pieces:
                    of_cells = number * count + cell, sample if not number else None, is_counted
                    pieces.append(self._pieces_of_cells(begin_ns, ns, *of_cells, wanted.together_ns))
        made, longest = list[Spans](), list[Int64Array]()
        for number, state in enumerate(_OF_BURSTS):
            spans, shown = copied(cells), total_ns[number] > 0
            spans["state"], spans["duration_ns"], spans["stands_for_ns"] = state, total_ns[number], total_ns[number]
            spans["count"] = counts[number]
            made.append(picked(spans, shown))
            longest.append(longest_ns[number][shown] * (state == ThreadState.RUNQUEUE))
        number_of, made_count = np.cumsum(total_ns.reshape(-1) > 0) - 1, sum(map(len, made))
        for piece in pieces:
            piece["span"] = number_of[piece["span"]]
        of_sums, its_pieces = self._sums_added_up(chosen, bursts, sums, gaps)
        for piece in its_pieces:
            piece["span"] += made_count
        made.append(of_sums)
        longest.append(np.zeros(len(of_sums), np.int64))
        pieces += its_pieces
        spans = one_after_another(SPAN_DTYPE, made)
        return _Part(spans, np.concatenate(longest), np.zeros(0, WAIT_TIME_DTYPE), pieces)

    def _sums_added_up(self, chosen: range, bursts: Bursts, sums: Spans, gaps: Gaps) -> tuple[Spans, list[Spans]]:
        """(a span for each of the waits that were only added up, their pieces if they are asked for)."""
        all_ns = np.add.reduceat(bursts.added_ns, bursts.first[:-1])
        sums = picked(sums, all_ns[sums["thread"].astype(np.int64) - chosen.start] > 0)
        thread = sums["thread"].astype(np.int64) - chosen.start
        begin = np.flatnonzero(np.diff(thread, prepend=-1))
        found = list[Spans]()
        if not gaps.with_pieces:
            of_thread = thread[begin]
            of_gaps = gaps.before_ns[of_thread], all_ns[of_thread]
            nanoseconds, counts = spread_by_thread(gaps.inside_ns[of_thread], sums, begin, *of_gaps)
        else:
            rows = gaps.pieces
            order = np.lexsort((rows["start_ns"], rows["span"]))
            of_gap, at_ns, gaps_ns = (rows[name][order] for name in ("span", "start_ns", "duration_ns"))
            for first, end in zip(begin.tolist(), [*begin[1:].tolist(), len(sums)]):
                its = slice(*np.searchsorted(of_gap, (thread[first], thread[first] + 1)))
                passed = int(gaps.before_ns[thread[first]]), int(all_ns[thread[first]])
                found.append(self._pieces_of_gaps(at_ns[its], gaps_ns[its], sums[first:end], *passed))
                found[-1]["span"] += first
            spread_out = one_after_another(PIECE_DTYPE, found)
            nanoseconds, counts = (
                sums_by(spread_out["span"], spread_out[name], len(sums)) for name in ("duration_ns", "count")
            )
        each, none = np.arange(len(sums)), np.zeros(len(sums), np.int64)
        spans = self._added(bursts.start_ns[bursts.first[thread]], sums, each, each, none, nanoseconds, counts)
        has_time = spans["duration_ns"] > 0
        number = np.cumsum(has_time) - 1
        for pieces in found:
            pieces["span"] = number[pieces["span"]]
        return picked(spans, has_time), found

    def _pieces_of_cells(
        self,
        start_ns: Int64Array,
        ns: Int64Array,
        span: Int64Array,
        sample: Int64Array | None,
        is_counted: Bools,
        together_ns: int,
    ) -> Spans:
        timed = np.flatnonzero(ns)
        of_pieces = ns[timed], is_counted[timed].astype(np.int64)
        pieces = pieces_of(span[timed], start_ns[timed] - self.threads.start_ns, *of_pieces, together_ns)
        if sample is not None and not together_ns:
            named = np.flatnonzero(sample[timed] >= 0)
            pieces["cpu"][named] = self.threads.samples.column("cpu", sample[timed[named]]) + 1
        return pieces

    def _pieces_of_gaps(
        self, start_ns: Int64Array, gaps_ns: Int64Array, sums: Spans, before_ns: int, all_ns: int
    ) -> Spans:
        """Waits of a thread that were only added up, in the gaps that they are in; span: the place of its sum."""
        passed_ns = np.append(before_ns, before_ns + np.cumsum(gaps_ns))
        held = [np.zeros(0, PIECE_DTYPE)]
        step, cut = self._spread_by(len(gaps_ns), len(sums))
        for begin in range(0, len(gaps_ns), step):
            own = slice(begin, begin + step)
            gap, which, into_ns, ns, count = cut(gaps_ns[own], sums, int(passed_ns[begin]), all_ns)
            pieces = np.zeros(len(gap), PIECE_DTYPE)
            pieces["start_ns"] = start_ns[own][gap] + into_ns - self.threads.start_ns
            pieces["duration_ns"], pieces["span"], pieces["count"] = ns, which, count
            held.append(pieces)
        return one_after_another(PIECE_DTYPE, held)


def _gil_part(
    kinds: Spans,
    number: npt.NDArray[np.intp],
    held: Spans,
    counts: Bools,
    wait: npt.NDArray[np.uint32],
    min_block_ns: int,
) -> tuple[_Part, npt.NDArray[np.intp]]:
    """(spans of parts of waits for a GIL, the number of each part's). For each part: number: its span without holders,
    counts: whether it counts, wait: the number of its wait."""
    whole_ns = held["ns"]
    if len(held):  # one wait comes as many rows, which stand together
        of_wait = np.flatnonzero(np.diff(wait.astype(np.int64), prepend=-1))
        whole_ns = np.repeat(np.add.reduceat(held["ns"], of_wait), np.diff(np.append(of_wait, len(held))))
    order, begin = grouped([number, held["holder"], held["stack"], whole_ns >= min_block_ns])
    first = first_of(order, begin)
    spans = picked(kinds, number[first])
    spans["holder"], spans["holder_stack"] = held["holder"][first], held["stack"][first]
    _sum(spans, held["ns"][order], counts[order], begin)
    longest_ns = np.maximum.reduceat(whole_ns[order], begin) if len(held) else np.zeros(0, np.int64)
    return _Part(spans, longest_ns, np.zeros(0, WAIT_TIME_DTYPE), []), numbers_of(order, begin)


def _as_whole(
    rows: Columns, wakers: npt.NDArray[np.uint32], waits: npt.NDArray[np.uint32], is_inside: Bools
) -> tuple[Columns, npt.NDArray[np.uint32]]:
    """The same rows and wakers; those of one wait that are inside are alike."""
    first = np.flatnonzero(np.diff(2 * waits.astype(np.int64) + is_inside, prepend=-1))
    if len(first) == len(rows):
        return rows, wakers
    counts = np.diff(np.append(first, len(rows)))
    last = np.repeat(first + counts - 1, counts)
    of_first = ("stack", "object", "status", "one_in", "task_state", "flags")
    columns = {name: np.repeat(rows[name][first], counts) for name in of_first}
    return rows.replaced({**columns, "waker_stack": rows["waker_stack"][last]}), wakers[last]


def _sum(spans: Spans, ns: Int64Array, counts: npt.NDArray[np.bool_], begin: npt.NDArray[np.intp]) -> None:
    """Gives each span the time and count of its group; both in the order of groups."""
    if len(begin):
        spans["duration_ns"] = spans["stands_for_ns"] = np.add.reduceat(ns, begin)
        spans["count"] = np.add.reduceat(counts.astype(np.int64), begin)
