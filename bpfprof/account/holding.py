"""Who had a lock when, and waits for it cut where it went to another holder."""

from __future__ import annotations

import numpy as np

from bpfprof.account.threads import Int64Array
from bpfprof.dataclass import dataclass

_PARTS, _PART_TIMES = 1 << 18, 8  # parts of all rows that are cut, and so many for each row


@dataclass(frozen=True)
class Holders:
    """Who had one lock, in the order of time: the ith is `holder[i]` from start_ns[i] until the next begins.

    key: a number for each (holder, stack); other: the last place before each that has another holder, -1: none.
    """

    start_ns: Int64Array
    holder: Int64Array
    key: Int64Array
    other: Int64Array

    def at(self, place: Int64Array, waiter: Int64Array) -> Int64Array:
        """The key at places (-1: before all), which is never the own one of each's waiter; -1: not known."""
        own = (place >= 0) & (self.holder[place] == waiter)
        place = np.where(own, self.other[place], place)
        return np.where(place >= 0, self.key[place], -1)


def holders_of(start: Int64Array, holder: Int64Array, key: Int64Array) -> Holders:
    """In the order of time; what was seen again is left out."""
    order = np.argsort(start, kind="stable")
    start, holder, key = start[order], holder[order], key[order]
    kept = np.append(True, key[1:] != key[:-1])[: len(key)]
    start, holder, key = start[kept], holder[kept], key[kept]
    begins_run = np.append(True, holder[1:] != holder[:-1])[: len(holder)]
    run_begin = np.maximum.accumulate(np.where(begins_run, np.arange(len(holder)), 0))
    # One more at the end, so that place -1 (before all) can be looked up.
    return Holders(*(np.append(column, -1) for column in (start, holder, key, run_begin - 1)))


def most_whole(holders: Holders, begin: Int64Array, end: Int64Array, all_rows: int) -> int:
    """How many whole times of holders a row may be cut into: all of them, unless many threads wait for as many holders.

    begin, end: of the rows of one lock; all_rows: of how many locks the parts are kept together.
    """
    start = holders.start_ns[:-1]
    whole = np.searchsorted(start, end, side="left") - np.searchsorted(start, begin, side="right") - 1
    parts, most = (_PARTS // all_rows + _PART_TIMES) * len(begin), max(1, int(whole.max(initial=0)))
    while most > 1 and int(np.minimum(whole, most).clip(0).sum()) > parts:
        most //= 2
    return most


def held_parts(
    holders: Holders, thread: Int64Array, begin: Int64Array, end: Int64Array, most: int
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """(row, key, start, nanoseconds) of the parts of rows of threads that lie behind one holder; key -1: not known.

    Whole times of holders beyond `most` of a row are one part, not known.
    """
    start = holders.start_ns[:-1]
    first = np.searchsorted(start, begin, side="right") - 1  # the holder when the wait began
    last = np.maximum(np.searchsorted(start, end, side="left") - 1, first)
    is_cut = last > first
    # Where it is cut there is a next one; else the -1 at the end may be looked up, which is not used.
    head_ns = np.where(is_cut, holders.start_ns[first + 1], end) - begin
    tail = np.flatnonzero(is_cut)
    # Whole times of a holder in between.
    whole = last[tail] - first[tail] - 1
    counts = np.minimum(whole, most)
    rest = np.flatnonzero(whole > counts)
    rest_start = holders.start_ns[first[tail[rest]] + 1 + counts[rest]]
    offsets = np.cumsum(counts) - counts
    between = np.repeat(first[tail] + 1 - offsets, counts) + np.arange(int(counts.sum()))
    tail_start = holders.start_ns[last[tail]]
    row = np.concatenate([np.arange(len(begin)), tail, np.repeat(tail, counts), tail[rest]])
    return (
        row,
        holders.at(np.concatenate([first, last[tail], between, rest * 0 - 1]), thread[row]),
        np.concatenate([begin, tail_start, holders.start_ns[between], rest_start]),
        np.concatenate(
            [
                head_ns,
                end[tail] - tail_start,
                holders.start_ns[between + 1] - holders.start_ns[between],
                tail_start[rest] - rest_start,
            ]
        ),
    )
