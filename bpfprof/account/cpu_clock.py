"""The clock of a thread's own CPU time, and where each part of it lies on the wall clock.

A burst is the time between two waits with a row: the thread ran, the hypervisor or an interrupt took the CPU from it,
and it was in waits that were only added up. How long each took is exact. When within the burst is not known, so all are
spread evenly over it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.threads import Int64Array, Threads


@dataclass(frozen=True)
class Bursts:
    """One element a burst. ran_ns + stolen_ns + added_ns + unknown_ns is how long it was on the wall clock.

    added_ns: in waits that were only added up; unknown_ns: what tells of it was lost. edges: the bursts laid end to end
    on the thread's CPU clock, one more than bursts, from 0 to its CPU time.
    """

    start_ns: Int64Array
    stolen_ns: Int64Array
    added_ns: Int64Array
    unknown_ns: Int64Array
    edges: Int64Array

    @classmethod
    def of_thread(
        cls,
        thread: int,
        threads: Threads,
        begin_ns: Int64Array,
        end_ns: Int64Array,
        added_ns: int,
        has_no_end: bool = False,
    ) -> Bursts:
        """The bursts between the thread's waits (from begin_ns to end_ns), before the first and after the last.

        added_ns: all waits of the thread that were only added up; what the bursts have beyond them is not known.
        """
        own = threads.waits.of_thread(thread)
        start = np.append(threads.first_ns[thread], end_ns)
        length = np.append(begin_ns, threads.last_ns[thread]) - start
        ran = np.append(threads.waits.column("on_cpu_ns", own).astype(np.int64), threads.on_cpu_ns[thread])
        ran = np.diff(np.maximum.accumulate(ran.clip(0, threads.on_cpu_ns[thread])), prepend=0)
        ran = np.minimum(ran, length)
        stolen = np.append(threads.waits.column("stolen_ns", own).astype(np.int64), threads.open_stolen_ns[thread])
        stolen = np.minimum(stolen, length - ran)
        left = length - ran - stolen
        if has_no_end:  # that the thread runs since its last row is only assumed
            later_ns = min(int(ran[-1]), max(0, added_ns - int(left.sum())))
            ran[-1], left[-1] = ran[-1] - later_ns, left[-1] + later_ns
        added = scaled(left, added_ns)
        return cls(start, stolen, added, left - added, np.concatenate([[0], np.cumsum(ran)]))

    def positions(self, time_ns: Int64Array) -> Int64Array:
        """Moments of the wall clock (ascending) on the thread's CPU clock."""
        burst = np.clip(np.searchsorted(self.start_ns, time_ns, side="right") - 1, 0, len(self.start_ns) - 1)
        ran = np.diff(self.edges)
        whole = (ran + self.stolen_ns + self.added_ns + self.unknown_ns)[burst]
        into = np.clip(time_ns - self.start_ns[burst], 0, whole)
        moved = into * (ran[burst] / np.maximum(whole, 1))
        return np.asarray(self.edges[burst] + np.clip(moved.astype(np.int64), 0, np.maximum(ran[burst] - 1, 0)))

    def wall_clock(
        self, position: Int64Array, length: Int64Array, burst: Int64Array
    ) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """(when each piece of CPU time began; how much stolen, added and unknown time follows it).

        No piece crosses an edge; `burst` is the one that each is of. A burst without CPU time has one piece, of none.
        """
        ran = np.diff(self.edges)[burst]
        begin, end = position - self.edges[burst], position + length - self.edges[burst]
        moved, follows = self.start_ns[burst] + begin, []
        for besides in (self.stolen_ns, self.added_ns, self.unknown_ns):
            share = besides[burst] / np.maximum(ran, 1)
            before = np.rint(begin * share).astype(np.int64)
            after = np.where(end == ran, besides[burst], np.rint(end * share).astype(np.int64))
            follows.append(after - before)
            moved = moved + before
        return moved, follows[0], follows[1], follows[2]


def scaled(parts: Int64Array, total: int) -> Int64Array:
    """`parts` as they are if they sum to `total` or less; else in proportion, to sum to it."""
    ends = np.cumsum(parts, dtype=np.float64)
    if not len(parts) or ends[-1] <= total:
        return parts
    return np.minimum(shared(parts, total), parts)


def shared(weights: npt.NDArray[np.generic], total: int) -> Int64Array:
    """`total` in whole parts, as near as can be in proportion to weights, which are not negative and not all 0."""
    ends = np.cumsum(weights, dtype=np.float64)
    borders = np.minimum(np.rint(ends * (total / ends[-1])), float(total))
    borders[-1] = total
    return np.asarray(np.diff(borders, prepend=0), np.int64)
