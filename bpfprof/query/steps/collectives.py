"""Loops of ranks -> the collectives that they make together, and when each of them comes there.

A rank that has come to a collective waits in it. Which of its waits is of which collective is told by the others' of
the same time: no rank leaves a collective before all have come there.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools
from bpfprof.query.steps.clocks import runs
from bpfprof.query.steps.pieces import cut_where, merged
from bpfprof.query.steps.ranks import ON_CPU, RankLoop
from bpfprof.query.steps.steps import Floats

_ONE_WAIT_NS = 60_000  # on a CPU between two waits in one collective: a call of the next one takes longer
_CALL_NS = 1_000_000  # from where a rank has come to a collective until it waits: a call takes less, once it has a CPU
_NEARER = 3  # times: what is ready between two collectives is of the next one, unless it is so much nearer the last
_MOSTLY = 0.5  # of the time in communication: with fewer waits it asks again and again
_READY_ONE = 0.4  # of a pair of waits, of which one is for a CPU: that may be before another, or after it


@dataclass(frozen=True)
class Collectives:
    """came_ns: for each rank (row) and collective (column) when it came there, in nanoseconds by a clock of all.

    counted_by: the place of the rank whose waits they are.
    """

    came_ns: Floats
    counted_by: int

    def waits_of(self, place: int) -> tuple[Ints, Ints]:
        """From when until when a rank waits for the last one to come."""
        came_ns = self.came_ns[place].astype(np.int64)
        last_ns = self.came_ns.max(axis=0).astype(np.int64)
        return merged(came_ns[came_ns < last_ns], last_ns[came_ns < last_ns])

    def later_ns(self, place: int, begin_ns: Ints) -> float:
        """Of a step: by how much later a rank comes to collectives than most others do, on the mean, where it does.

        begin_ns: where steps begin, and where the last one ends, for the rank that they are counted by; of that clock.
        """
        more_ns = self.came_ns[place] - np.median(np.delete(self.came_ns, place, axis=0), axis=0)
        step = np.searchsorted(begin_ns, self.came_ns[self.counted_by], side="right") - 1
        chosen = (step >= 0) & (step < len(begin_ns) - 1)
        more_ns, step = more_ns[chosen], step[chosen]
        if not len(step):
            return 0.0
        # Others that share a CPU may come later than it to those that follow on the first.
        number = np.arange(len(step)) - np.searchsorted(step, step)
        counts = np.unique(step, return_counts=True)[1]
        missing = (1 - counts[[0, -1]] / np.median(counts)).clip(0).sum()  # parts of the first and the last step
        return float(np.bincount(number, more_ns).clip(0).sum() / (len(counts) - missing))


@dataclass(frozen=True)
class _Waits:
    """Of a rank in communication, in the order of time, by a clock of all. is_it: it waits for more than a CPU."""

    begin_ns: Ints
    end_ns: Ints
    is_it: Bools


def collectives_of(loops: Sequence[RankLoop], zeros_ns: Sequence[int]) -> Collectives | None:
    """zeros_ns: when the recording of each loop began, by the clock of all.

    None: no rank waits in communication, or one was not seen to communicate, which tells nothing of when it comes.
    """
    if not all(loop.communicates.any() for loop in loops):
        return None
    waits = [_waits(loop, zero) for loop, zero in zip(loops, zeros_ns)]
    counted_by = int(np.argmax([np.count_nonzero(each.is_it) for each in waits]))
    counted = waits[counted_by]
    if not counted.is_it.any():
        return None
    places = np.array(
        [
            np.arange(len(counted.begin_ns)) if place == counted_by else _of_the_same(counted, each)
            for place, each in enumerate(waits)
        ]
    )
    others = np.count_nonzero(places >= 0, axis=0) - 1
    places = places[:, counted.is_it | ((others > 0) & (2 * others >= len(loops) - 1))]
    came_ns, left_ns = np.full(places.shape, np.nan), np.full(places.shape, np.nan)
    for row, (place, each) in enumerate(zip(places, waits)):
        has_it = place >= 0
        came_ns[row, has_it] = _came(each, place[has_it])
        left_ns[row, has_it] = each.end_ns[place[has_it]]
    # Who does not wait comes last: then the others go on.
    return Collectives(np.where(places >= 0, came_ns, np.nanmin(left_ns, axis=0)), counted_by)


def until_all_are_there(
    loops: Sequence[RankLoop], are_waits: Sequence[Bools], found: Collectives, zeros_ns: Sequence[int]
) -> tuple[list[RankLoop], list[Bools]]:
    """The loops, cut where the last of them comes to a collective; which of the spans, as they are now, are waits for
    others: so is what a rank does in communication before, as it asks again and again, or its library's threads do."""
    cut = [
        _cut(loop, is_wait, *(each - zero_ns for each in found.waits_of(place)))
        for place, (loop, is_wait, zero_ns) in enumerate(zip(loops, are_waits, zeros_ns))
    ]
    return [loop for loop, _ in cut], [is_wait for _, is_wait in cut]


def _cut(loop: RankLoop, is_wait: Bools, begin_ns: Ints, end_ns: Ints) -> tuple[RankLoop, Bools]:
    chosen = loop.communicates & ~is_wait
    span, start_ns, until_ns, is_in = cut_where(loop.start_ns, loop.end_ns, chosen, begin_ns, end_ns)
    columns = {name: getattr(loop, name)[span] for name in ("what", "ended_by", "waits")}
    return replace(loop, start_ns=start_ns, end_ns=until_ns, **columns), is_wait[span] | is_in


def _waits(loop: RankLoop, zero_ns: int) -> _Waits:
    chosen = loop.communicates & np.array([each.state not in ON_CPU for each in loop.activities] or [False])[loop.what]
    begin_ns, end_ns = merged(loop.start_ns[chosen], loop.end_ns[chosen])
    is_it = np.zeros(len(begin_ns), np.bool_)
    is_it[np.searchsorted(begin_ns, loop.start_ns[chosen & loop.waits], side="right") - 1] = True
    whole_ns = (loop.end_ns - loop.start_ns)[loop.communicates].sum()
    if (end_ns - begin_ns)[is_it].sum() < _MOSTLY * whole_ns:
        begin_ns, end_ns = runs(loop)
        is_it = np.ones(len(begin_ns), np.bool_)
    first = np.flatnonzero(np.append(True, begin_ns[1:] - end_ns[:-1] > _ONE_WAIT_NS)[: len(begin_ns)])
    last = np.append(first[1:], len(begin_ns))[: len(first)] - 1
    is_it = np.logical_or.reduceat(is_it, first) if len(first) else is_it
    return _Waits(begin_ns[first] + zero_ns, end_ns[last] + zero_ns, is_it)


def _of_the_same(one: _Waits, other: _Waits) -> npt.NDArray[np.int64]:
    """For each wait of one rank the other's in the same collective, -1: none. As many as can be, of one time each, in
    the same order; then such as are longest at one time."""
    first = np.searchsorted(other.end_ns, one.begin_ns, side="right")
    counts = (np.searchsorted(other.begin_ns, one.end_ns, side="left") - first).clip(0)
    mine = np.repeat(np.arange(len(one.begin_ns)), counts)
    theirs = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts) + first[mine]
    chosen = one.is_it[mine] | other.is_it[theirs]  # two that are ready may be before the wait that is of both
    mine, theirs = mine[chosen], theirs[chosen]
    together_ns = np.minimum(one.end_ns[mine], other.end_ns[theirs]) - np.maximum(
        one.begin_ns[mine], other.begin_ns[theirs]
    )
    is_sure = one.is_it[mine] & other.is_it[theirs]
    worth = np.where(is_sure, 1.0, _READY_ONE) + together_ns / (1.0 + together_ns.sum())
    found = np.full(len(one.begin_ns), -1)
    best = _best(mine, theirs, worth)
    found[mine[best]] = theirs[best]
    return found


def _best(mine: Ints, theirs: Ints, worth: Floats) -> list[int]:
    """Places of the pairs that are worth most together, none of which have a wait in common.

    The waits of a rank follow one another, so neither number falls from a pair to the next: those that have a wait in
    common with a pair stand right before and after it.
    """
    begins = np.minimum(np.searchsorted(mine, mine), np.searchsorted(theirs, theirs)).tolist()
    # Of so many first pairs: what they are worth at most, and the last one of these.
    most, last, before = array("d", [0.0]), array("q", [-1]), array("q")
    for pair, (value, begin) in enumerate(zip(worth.tolist(), begins)):
        before.append(last[begin])
        is_more = most[begin] + value > most[-1]
        most.append(most[begin] + value if is_more else most[-1])
        last.append(pair if is_more else last[-1])
    found, pair = [], last[-1]
    while pair >= 0:
        found.append(pair)
        pair = before[pair]
    return found


def _came(waits: _Waits, places: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """When it came to the collectives in which it has these waits: who is ready before has been stopped on the way."""
    begin_ns, end_ns = waits.begin_ns, waits.end_ns
    is_one = np.zeros(len(begin_ns), np.bool_)
    is_one[places] = True
    last_ns = np.append(-1, np.maximum.accumulate(np.where(is_one, end_ns, -1))[:-1])
    after_ns = np.append(begin_ns[1:] - end_ns[:-1], _CALL_NS)
    is_on_the_way = ~waits.is_it & ~is_one & (after_ns < _CALL_NS) & (after_ns < _NEARER * (begin_ns - last_ns))
    goes_on = np.append(False, is_on_the_way[:-1])  # from the one before
    first = np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(begin_ns))))
    return np.asarray(begin_ns[first[places]])
