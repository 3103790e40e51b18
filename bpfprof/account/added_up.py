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
from bpfprof.account.pieces import first_of_samples, in_order, pieces_of
from bpfprof.account.running import Running, running_times
from bpfprof.account.spans import Spans, SpanSource
from bpfprof.account.threads import Int64Array
from bpfprof.account.wakers import waker_places
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
    """

    has_whole: bool = False
    with_pieces: bool = False
    together_ns: int = 0
    min_block_ns: int = 0


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
        _, with_pieces, together_ns, _ = wanted
        # First, for this needs more memory than it leaves.
        of_bursts = self._bursts_added_up(group, with_pieces, together_ns)
        first, times = group.waits.start, self._times(group)
        parts: list[_Part] = []
        count = 0
        for own in self.threads.waits.blocks(group.waits):
            of_block = (time_s[own.start - first : own.stop - first] for time_s in times)
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
        made = AddedUp(spans, longest_ns, self.are_parked(spans["thread"], longest_ns), of_waits)
        if not with_pieces:
            return made
        pieces = one_after_another(PIECE_DTYPE, [piece for part in parts for piece in part.pieces])
        del parts
        return made._replace(pieces=pieces if together_ns else in_order(pieces, spans))

    def with_single_waits(self, group: Group) -> Spans:
        """Of a group, in any order: one for each wait with a row, and what else there is added up."""
        spans = one_after_another(SPAN_DTYPE, [*self._waits(group, None), self._bursts_added_up(group, False).spans])
        if self._has_unsampled(group):
            (spans,) = estimated(lambda: iter([spans]))
        return spans

    def running(self, group: Group, is_shown: Bools) -> Running:
        """When those threads of a group that are shown were runnable and on a CPU."""
        (bursts, sums), (_, woken_ns, end_ns) = self._bursts(group), self._times(group)
        return running_times(group.threads, is_shown, bursts, sums, woken_ns, end_ns)

    def are_parked(self, threads: npt.NDArray[np.uint32], ns: Int64Array) -> Bools:
        """Whether waits of these threads that last so long are nearly all of their time."""
        wall_ns = self.threads.last_ns - self.threads.first_ns
        return np.asarray(ns >= _PARKED_PART * wall_ns[threads])

    def _waits_added_up(
        self, own: slice, wanted: Wanted, begin_ns: Int64Array, woken_ns: Int64Array, end_ns: Int64Array
    ) -> list[_Part]:
        """Blocked and runnable ones of a block of rows."""
        has_whole, with_pieces, _, min_block_ns = wanted
        rows, reasons = self.threads.waits.rows(own), self._reasons[own]
        blocked_ns, ready_ns = woken_ns - begin_ns, end_ns - woken_ns
        wakers, locks = waker_places(self._recording, rows, reasons, blocked_ns), self._locks_of(rows, reasons)
        if has_whole:
            rows, wakers = self._as_whole(rows, wakers, own)
        names = ("thread", "stack", "waker_stack", "object", "status", "one_in", "task_state")
        columns = [rows[name] for name in names]
        alike = rows["flags"] & HOLDS_GIL, self.are_parked(rows["thread"], blocked_ns), blocked_ns >= min_block_ns
        order, begin = grouped([*columns, reasons, wakers, locks, *alike])
        first = first_of(order, begin)
        kinds = self._spans_of(rows.picked(first), reasons[first])
        kinds["wait"] = self._wait_number[own][first]
        kinds["start_ns"] = np.minimum.reduceat(begin_ns[order], begin) - self.threads.start_ns
        is_first = self._is_first[own]
        ready = copied(kinds)
        ready["state"] = ThreadState.RUNQUEUE
        _sum(ready, ready_ns[order], (is_first & (ready_ns > 0))[order], begin)
        blocked = kinds
        blocked["state"] = ThreadState.OFF_CPU
        for name in ("object", "waker_stack"):
            blocked[name] = rows[name][first]
        blocked["waker"], blocked["lock"] = wakers[first], locks[first]
        blocked["flags"] |= self._idle_flags(blocked["stack"], blocked["reason"])
        number, held = numbers_of(order, begin), self._held_in(own)
        place = held["place"] - own.start
        of_parts = number[place], held, is_first[place], self._wait_number[own][place]
        of_gil, gil_number = _gil_part(blocked, *of_parts, min_block_ns)
        blocked_ns[place] = 0  # the parts are in their place
        _sum(blocked, blocked_ns[order], (is_first & (blocked_ns > 0))[order], begin)
        timed = np.flatnonzero(blocked_ns)
        held_ns, held_end_ns, first = held["ns"], held["start_ns"] + held["ns"], np.arange(len(held))
        if has_whole and len(held):
            first = np.flatnonzero(np.diff(self._wait_number[own][place].astype(np.int64), prepend=-1))
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
            of_wait = self._wait_number[own], is_first
            of_blocked.append(self._pieces_of_waits(begin_ns, blocked_ns, number, *of_wait))
            of_ready.append(self._pieces_of_waits(woken_ns, ready_ns, number, *of_wait))
        if with_pieces and len(held):
            parts = np.zeros(len(held), PIECE_DTYPE)
            parts["start_ns"], parts["duration_ns"] = held["start_ns"] - self.threads.start_ns, held["ns"]
            parts["span"], parts["holder"] = len(blocked) + gil_number, held["holder"]
            parts["wait"] = self._wait_number[own][place]
            parts["count"] = is_first[place] & (np.diff(held["place"], prepend=-1) > 0)
            of_blocked.append(picked(parts, held["ns"] > 0))
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
        is_first: Bools,
    ) -> Spans:
        timed = np.flatnonzero(ns)
        pieces = np.zeros(len(timed), PIECE_DTYPE)
        pieces["start_ns"], pieces["duration_ns"] = start_ns[timed] - self.threads.start_ns, ns[timed]
        pieces["span"], pieces["wait"], pieces["count"] = span[timed], wait[timed], is_first[timed]
        return pieces

    def _as_whole(
        self, rows: Columns, wakers: npt.NDArray[np.uint32], own: slice
    ) -> tuple[Columns, npt.NDArray[np.uint32]]:
        """The same rows and wakers; those of one wait are alike."""
        waits = self._wait_number[own]
        first = np.flatnonzero(np.diff(waits.astype(np.int64), prepend=-1))
        counts = np.diff(np.append(first, len(rows)))
        if len(first) == len(rows):
            return rows, wakers
        last = np.repeat(first + counts - 1, counts)
        of_first = ("stack", "object", "status", "one_in", "task_state", "flags")
        columns = {name: np.repeat(rows[name][first], counts) for name in of_first}
        return rows.replaced({**columns, "waker_stack": rows["waker_stack"][last]}), wakers[last]

    def _bursts_added_up(self, group: Group, with_pieces: bool, together_ns: int = 0) -> _Part:
        """A span for each sample and state, and of each thread what no sample speaks for."""
        samples, (bursts, sums) = self.threads.samples, self._bursts(group)
        all_pieces = self._pieces_in(group, bursts)
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
        pieces, gaps, seen = list[Spans](), list[Spans](), np.zeros(own.stop - own.start, np.bool_)
        for begin in range(0, len(all_pieces[0]), _PIECES):  # of a thread there may be very many
            position, length, sample, burst = (column[begin : begin + _PIECES] for column in all_pieces)
            at_ns, taken_ns, added_ns, unknown_ns = bursts.wall_clock(position, length, burst)
            cell = np.where(sample >= 0, sample - own.start + len(chosen), bursts.thread[burst])
            np.minimum.at(cells["start_ns"], cell, at_ns - self.threads.start_ns)
            for number, ns in enumerate((length, taken_ns, unknown_ns)):
                total_ns[number] += sums_by(cell, ns, count)
                counts[number] += np.bincount(cell[ns > 0], minlength=count)
                np.maximum.at(longest_ns[number], cell, ns)
                if with_pieces:
                    first = first_of_samples(sample, seen, own.start, ns) if not number else None
                    pieces.append(self._pieces_of_cells(at_ns, ns, number * count + cell, sample, first, together_ns))
                at_ns = at_ns + ns
            if with_pieces:
                gap = np.flatnonzero(added_ns)
                gaps.append(pieces_of(bursts.thread[burst[gap]], at_ns[gap], added_ns[gap], None, together_ns))
        made, longest = list[Spans](), list[Int64Array]()
        for number, state in enumerate(_OF_BURSTS):
            spans, shown = copied(cells), total_ns[number] > 0
            spans["state"], spans["duration_ns"], spans["stands_for_ns"] = state, total_ns[number], total_ns[number]
            spans["count"] = counts[number]
            if state == ThreadState.ON_CPU:
                spans["count"] = np.arange(count) >= len(chosen)
            made.append(picked(spans, shown))
            longest.append(longest_ns[number][shown] * (state == ThreadState.RUNQUEUE))
        number_of, made_count = np.cumsum(total_ns.reshape(-1) > 0) - 1, sum(map(len, made))
        for piece in pieces:
            piece["span"] = number_of[piece["span"]]
        of_sums, its_pieces = self._sums_added_up(
            chosen, bursts, sums, one_after_another(PIECE_DTYPE, gaps) if with_pieces else None
        )
        for piece in its_pieces:
            piece["span"] += made_count
        made.append(of_sums)
        longest.append(np.zeros(len(of_sums), np.int64))
        pieces += its_pieces
        spans = one_after_another(SPAN_DTYPE, made)
        return _Part(spans, np.concatenate(longest), np.zeros(0, WAIT_TIME_DTYPE), pieces)

    def _sums_added_up(
        self, chosen: range, bursts: Bursts, sums: Spans, gaps: Spans | None
    ) -> tuple[Spans, list[Spans]]:
        """(a span for each of the waits that were only added up, their pieces).

        gaps: PIECE_DTYPE of those that the waits are in, by thread for span; None: pieces are not asked for.
        """
        all_ns = np.add.reduceat(bursts.added_ns, bursts.first[:-1])
        sums = picked(sums, all_ns[sums["thread"].astype(np.int64) - chosen.start] > 0)
        thread = sums["thread"].astype(np.int64) - chosen.start
        begin = np.flatnonzero(np.diff(thread, prepend=-1))
        found = list[Spans]()
        if gaps is None:
            nanoseconds, counts = spread_by_thread(all_ns[thread[begin]], sums, begin), sums["count"]
        else:
            order = np.lexsort((gaps["start_ns"], gaps["span"]))
            of_gap, at_ns, gaps_ns = (gaps[name][order] for name in ("span", "start_ns", "duration_ns"))
            for first, end in zip(begin.tolist(), [*begin[1:].tolist(), len(sums)]):
                its = slice(*np.searchsorted(of_gap, (thread[first], thread[first] + 1)))
                all_of_it = int(all_ns[thread[first]])
                found.append(self._pieces_of_gaps(at_ns[its], gaps_ns[its], sums[first:end], all_of_it))
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
        sample: Int64Array,
        first: Int64Array | None,
        together_ns: int,
    ) -> Spans:
        """first: those in which samples are counted; None: all count."""
        timed = np.flatnonzero(ns)
        count = np.ones(len(ns), np.int64)
        if first is not None:
            count[:] = 0
            count[first] = 1
        pieces = pieces_of(span[timed], start_ns[timed] - self.threads.start_ns, ns[timed], count[timed], together_ns)
        if first is not None and not together_ns:
            named = np.flatnonzero(sample[timed] >= 0)
            pieces["cpu"][named] = self.threads.samples.column("cpu", sample[timed[named]]) + 1
        return pieces

    def _pieces_of_gaps(self, start_ns: Int64Array, gaps_ns: Int64Array, sums: Spans, all_ns: int) -> Spans:
        """Waits of a thread that were only added up, in the gaps that they are in; span: the place of its sum."""
        passed_ns = np.append(0, np.cumsum(gaps_ns))
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
    is_first: Bools,
    wait: npt.NDArray[np.uint32],
    min_block_ns: int,
) -> tuple[_Part, npt.NDArray[np.intp]]:
    """(spans of parts of waits for a GIL, the number of each part's). For each part: number: its span without holders,
    is_first: whether its row begins a wait, wait: the number of that."""
    whole_ns = held["ns"]
    if len(held):  # one wait comes as many rows, which stand together
        of_wait = np.flatnonzero(np.diff(wait.astype(np.int64), prepend=-1))
        whole_ns = np.repeat(np.add.reduceat(held["ns"], of_wait), np.diff(np.append(of_wait, len(held))))
    order, begin = grouped([number, held["holder"], held["stack"], whole_ns >= min_block_ns])
    first = first_of(order, begin)
    spans = picked(kinds, number[first])
    spans["holder"], spans["holder_stack"] = held["holder"][first], held["stack"][first]
    counts = is_first & (np.diff(held["place"], prepend=-1) > 0)
    _sum(spans, held["ns"][order], counts[order], begin)
    longest_ns = np.maximum.reduceat(whole_ns[order], begin) if len(held) else np.zeros(0, np.int64)
    return _Part(spans, longest_ns, np.zeros(0, WAIT_TIME_DTYPE), []), numbers_of(order, begin)


def _sum(spans: Spans, ns: Int64Array, counts: npt.NDArray[np.bool_], begin: npt.NDArray[np.intp]) -> None:
    """Gives each span the time and count of its group; both in the order of groups."""
    if len(begin):
        spans["duration_ns"] = spans["stands_for_ns"] = np.add.reduceat(ns, begin)
        spans["count"] = np.add.reduceat(counts.astype(np.int64), begin)
