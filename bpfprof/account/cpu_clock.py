"""The bursts of one thread: the times it was on a CPU, between two waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bpfprof.account.intervals import Intervals

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bursts:
    """start_ns and wall_ns: on the wall clock; edges: the same bursts laid end to end on the thread's own CPU clock.

    wall_ns is longer than the burst's CPU time where the hypervisor took time away. short_ns is how long the thread was
    in short waits besides: what lies between two waits with a row is one burst, whatever short waits are in it. When
    within the burst either was is not known, so both are spread evenly over it.
    """

    start_ns: Int64Array
    wall_ns: Int64Array
    short_ns: Int64Array
    edges: Int64Array  # one more than bursts, from 0 to the CPU time of the thread

    @classmethod
    def of_thread(cls, thread: int, intervals: Intervals, short_ns: int = 0) -> Bursts:
        """The bursts between the thread's waits, before the first and after the last.

        short_ns: all short waits of the thread; time between waits beyond that is left open.
        """
        waits, total = intervals.waits, int(intervals.on_cpu_ns[thread])
        ends = np.minimum(waits.column(thread, "on_cpu_ns").astype(np.int64), total)
        edges = np.concatenate([[0], np.maximum.accumulate(ends), [total]]).astype(np.int64)
        first, last = intervals.first_ns[thread : thread + 1], intervals.last_ns[thread : thread + 1]
        back = waits.column(thread, "time_ns").astype(np.int64)
        away = (waits.column(thread, "blocked_ns") + waits.column(thread, "runqueue_ns")).astype(np.int64)
        start, end = np.concatenate([first, back]), np.concatenate([back - away, last])
        stolen = [waits.column(thread, "stolen_ns").astype(np.int64), intervals.open_stolen_ns[thread : thread + 1]]
        between = np.maximum(end - start, 0)
        wall = np.maximum(np.minimum(np.diff(edges) + np.concatenate(stolen), between), np.diff(edges))
        short = np.zeros(len(wall), np.int64)
        if short_ns > 0:
            short = scaled(np.maximum(between - wall, 0), short_ns)
        return cls(start, wall, short, edges)

    def positions(self, time_ns: Int64Array) -> Int64Array:
        """Moments of the wall clock (ascending) on the thread's CPU clock."""
        burst = np.clip(np.searchsorted(self.start_ns, time_ns, side="right") - 1, 0, len(self.start_ns) - 1)
        whole = (self.wall_ns + self.short_ns)[burst]
        into = np.clip(time_ns - self.start_ns[burst], 0, whole)
        ran = np.diff(self.edges)[burst]
        moved = into * (ran / np.maximum(whole, 1))
        return np.asarray(self.edges[burst] + np.clip(moved.astype(np.int64), 0, np.maximum(ran - 1, 0)))

    def wall_clock(self, position: Int64Array, length: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """(when each piece of CPU time began, how much stolen time and then short waits follow it).

        No piece may cross an edge.
        """
        burst = np.clip(np.searchsorted(self.edges, position, side="right") - 1, 0, len(self.start_ns) - 1)
        all_ran = np.diff(self.edges)
        ran = np.maximum(all_ran[burst], 1)
        begin, end = position - self.edges[burst], position + length - self.edges[burst]
        moved, follows = self.start_ns[burst] + begin, []
        for besides in (self.wall_ns - all_ran, self.short_ns):
            share = besides[burst] / ran
            before = np.rint(begin * share).astype(np.int64)
            follows.append(np.rint(end * share).astype(np.int64) - before)
            moved = moved + before
        return moved, follows[0], follows[1]


def scaled(parts: Int64Array, total: int) -> Int64Array:
    """`parts` as they are if they sum to `total` or less; else in proportion, to sum to it."""
    ends = np.cumsum(parts, dtype=np.float64)
    if not len(parts) or ends[-1] <= total:
        return parts
    return shared(parts, total)


def shared(weights: npt.NDArray[np.generic], total: int) -> Int64Array:
    """`total` in whole parts, as near as can be in proportion to weights, which are not negative and not all 0."""
    ends = np.cumsum(weights, dtype=np.float64)
    borders = np.minimum(np.rint(ends * (total / ends[-1])), float(total))
    borders[-1] = total
    return np.asarray(np.diff(borders, prepend=0), np.int64)
