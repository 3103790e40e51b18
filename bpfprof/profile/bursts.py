"""The bursts of one thread: the times it was on a CPU, between two waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bpfprof.profile.intervals import Intervals

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bursts:
    """start_ns and wall_ns: on the wall clock; edges: the same bursts laid end to end on the thread's own CPU clock.

    wall_ns is longer than the burst's CPU time where the hypervisor took time away; when within the burst is not known,
    so it is spread evenly over it.
    """

    start_ns: Int64Array
    wall_ns: Int64Array
    edges: Int64Array  # one more than bursts, from 0 to the CPU time of the thread

    @classmethod
    def of_thread(cls, thread: int, intervals: Intervals) -> Bursts:
        """The bursts between the thread's waits, before the first and after the last."""
        waits, total = intervals.waits, int(intervals.on_cpu_ns[thread])
        ends = np.minimum(waits.column(thread, "on_cpu_ns").astype(np.int64), total)
        edges = np.concatenate([[0], np.maximum.accumulate(ends), [total]]).astype(np.int64)
        first, last = intervals.first_ns[thread : thread + 1], intervals.last_ns[thread : thread + 1]
        back = waits.column(thread, "time_ns").astype(np.int64)
        away = (waits.column(thread, "blocked_ns") + waits.column(thread, "runqueue_ns")).astype(np.int64)
        start, end = np.concatenate([first, back]), np.concatenate([back - away, last])
        stolen = [waits.column(thread, "stolen_ns").astype(np.int64), intervals.open_stolen_ns[thread : thread + 1]]
        wall = np.minimum(np.diff(edges) + np.concatenate(stolen), np.maximum(end - start, 0))
        return cls(start, np.maximum(wall, np.diff(edges)), edges)

    def positions(self, time_ns: Int64Array) -> Int64Array:
        """Moments of the wall clock (ascending) on the thread's CPU clock."""
        burst = np.clip(np.searchsorted(self.start_ns, time_ns, side="right") - 1, 0, len(self.start_ns) - 1)
        into = np.clip(time_ns - self.start_ns[burst], 0, self.wall_ns[burst])
        ran = np.diff(self.edges)[burst]
        scaled = into * (ran / np.maximum(self.wall_ns[burst], 1))
        return np.asarray(self.edges[burst] + np.clip(scaled.astype(np.int64), 0, np.maximum(ran - 1, 0)))

    def wall_clock(self, position: Int64Array, length: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(when each piece of CPU time began, how much stolen time follows it); no piece may cross an edge."""
        burst = np.clip(np.searchsorted(self.edges, position, side="right") - 1, 0, len(self.start_ns) - 1)
        ran = np.maximum(np.diff(self.edges)[burst], 1)
        slowdown = self.wall_ns[burst] / ran
        begin = np.rint((position - self.edges[burst]) * slowdown).astype(np.int64)
        end = np.rint((position + length - self.edges[burst]) * slowdown).astype(np.int64)
        return self.start_ns[burst] + begin, end - begin - length
