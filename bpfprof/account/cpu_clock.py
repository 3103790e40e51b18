"""The clock of a thread's own CPU time, and where each part of it lies on the wall clock.

A burst is the time between two waits with a row: the thread ran, its CPU was taken from it by the hypervisor, by an
interrupt, or by another thread for less than a wait with a row, and it was in waits that were only added up. How long
each took is exact. When within the burst is not known, so all are spread evenly over it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bpfprof.account.groups import Group
from bpfprof.account.threads import Int64Array, RowsByThread
from bpfprof.dataclass import dataclass


class _Told(NamedTuple):
    """What rows of waits tell of the bursts between them; `left`: what neither ran nor was stolen."""

    start: Int64Array
    ran: Int64Array
    stolen: Int64Array
    left: Int64Array
    first: Int64Array
    thread: Int64Array
    before: Int64Array


@dataclass(frozen=True)
class Bursts:
    """The bursts of threads, one thread after the other; the columns but `edges` have one element a burst.

    ran + taken_ns + added_ns + unknown_ns is how long it was on the wall clock. taken_ns: others had its CPU, at a
    moment that has nothing to do with what it did; added_ns: in waits that were only added up; unknown_ns: what tells
    of it was lost. edges: the bursts laid end to end on the threads' CPU clocks, one more than bursts, from 0 to their
    CPU time. first: for each thread its first burst, and one more for the end; every thread has one. thread: place of
    each burst's thread. before_wait: for each wait the burst before it.
    """

    start_ns: Int64Array
    taken_ns: Int64Array
    added_ns: Int64Array
    unknown_ns: Int64Array
    edges: Int64Array
    first: Int64Array
    thread: Int64Array
    before_wait: Int64Array

    @classmethod
    def of_group(
        cls,
        group: Group,
        waits: RowsByThread,
        begin_ns: Int64Array,
        end_ns: Int64Array,
        preempted_ns: Int64Array,
        added_ns: Int64Array,
        has_no_end: bool = False,
    ) -> Bursts:
        """The bursts between the waits (from begin_ns to end_ns) of each thread of a group, before and after them.

        preempted_ns: for each thread what without_preemptions() gives; added_ns: all its other waits that were only
        added up. What bursts have beyond them is not known.
        """
        start, ran, stolen, left, first, thread, before = _told(group, waits, begin_ns, end_ns)
        if has_no_end:  # that the thread runs since its last row is only assumed
            last = first[1:] - 1
            later_ns = np.minimum(ran[last], (added_ns + preempted_ns - np.add.reduceat(left, first[:-1])).clip(0))
            ran[last], left[last] = ran[last] - later_ns, left[last] + later_ns
        told = scaled(left, first, thread, added_ns + preempted_ns)
        preempted = scaled(told, first, thread, preempted_ns)
        edges = np.append(0, np.cumsum(ran))
        return cls(start, stolen + preempted, told - preempted, left - told, edges, first, thread, before)

    def positions(self, time_ns: Int64Array, thread: Int64Array) -> Int64Array:
        """Moments of the wall clock (ascending for each thread) on the CPU clock of their threads."""
        if not len(time_ns):
            return time_ns
        least = min(int(self.start_ns.min()), int(time_ns.min()))
        apart = max(int(self.start_ns.max()), int(time_ns.max())) - least + 1
        keys = self.start_ns - least + self.thread * apart
        burst = np.searchsorted(keys, time_ns - least + thread * apart, side="right") - 1
        burst = np.clip(burst, self.first[thread], self.first[thread + 1] - 1)
        ran = np.diff(self.edges)
        whole = (ran + self.taken_ns + self.added_ns + self.unknown_ns)[burst]
        into = np.clip(time_ns - self.start_ns[burst], 0, whole)
        moved = into * (ran[burst] / np.maximum(whole, 1))
        return np.asarray(self.edges[burst] + np.clip(moved.astype(np.int64), 0, np.maximum(ran[burst] - 1, 0)))

    def wall_clock(
        self, position: Int64Array, length: Int64Array, burst: Int64Array
    ) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """(when each piece of CPU time began; how much taken, added and unknown time follows it).

        No piece crosses an edge; `burst` is the one that each is of. A burst without CPU time has one piece, of none.
        """
        edge = self.edges[burst]
        ran = self.edges[burst + 1] - edge
        begin, end = position - edge, position + length - edge
        moved, follows = self.start_ns[burst] + begin, []
        for besides in (self.taken_ns, self.added_ns, self.unknown_ns):
            share = besides[burst] / np.maximum(ran, 1)
            before = np.rint(begin * share).astype(np.int64)
            after = np.where(end == ran, besides[burst], np.rint(end * share).astype(np.int64))
            follows.append(after - before)
            moved = moved + before
        return moved, follows[0], follows[1], follows[2]


def _told(group: Group, waits: RowsByThread, begin_ns: Int64Array, end_ns: Int64Array) -> _Told:
    own, count, wait_counts = group.waits, len(group.threads), np.diff(group.wait_begin)
    first = np.append(0, np.cumsum(wait_counts + 1))
    thread, last = np.repeat(np.arange(count), wait_counts + 1), first[1:] - 1
    before = np.arange(own.stop - own.start) + np.repeat(np.arange(count), wait_counts)

    def filled(of_waits: Int64Array, of_threads: Int64Array, at: Int64Array, shift: int) -> Int64Array:
        column = np.empty(int(first[-1]), np.int64)
        column[before + shift], column[at] = of_waits, of_threads
        return column

    start = filled(end_ns, group.first_ns, first[:-1], 1)
    length = filled(begin_ns, group.last_ns, last, 0) - start
    on_cpu_ns = group.ran_until_ns - group.ran_before_ns
    ran = filled(waits.column("on_cpu_ns", own).astype(np.int64), group.ran_until_ns, last, 0)
    # The clocks one after the other, so that no thread's begins before that of the thread before ends.
    ran = (ran - group.ran_before_ns[thread]).clip(0, on_cpu_ns[thread]) + (np.cumsum(on_cpu_ns) - on_cpu_ns)[thread]
    ran = np.minimum(np.diff(np.maximum.accumulate(ran), prepend=0), length)
    stolen = filled(waits.column("stolen_ns", own).astype(np.int64), group.open_stolen_ns, last, 0)
    stolen = np.minimum(stolen, length - ran)
    return _Told(start, ran, stolen, length - ran - stolen, first, thread, before)


def left_ns(group: Group, waits: RowsByThread, begin_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """How long each thread of a group neither ran nor was in waits with a row, from begin_ns to end_ns."""
    told = _told(group, waits, begin_ns, end_ns)
    return np.add.reduceat(told.left, told.first[:-1])


def scaled(parts: Int64Array, first: Int64Array, thread: Int64Array, totals: Int64Array) -> Int64Array:
    """`parts` as they are where those of a thread sum to its total or less; else in proportion, to sum to it."""
    sums = np.add.reduceat(parts, first[:-1])
    if (sums <= totals).all():
        return parts
    ends = (np.cumsum(parts) - (np.cumsum(sums) - sums)[thread]).astype(np.float64)
    borders = np.minimum(np.rint(ends * (totals / np.maximum(sums, 1))[thread]), totals[thread].astype(np.float64))
    borders[first[1:] - 1] = totals
    shares = np.diff(borders, prepend=0)
    shares[first[:-1]] = borders[first[:-1]]
    return np.where((sums > totals)[thread], np.minimum(shares.astype(np.int64), parts), parts)
