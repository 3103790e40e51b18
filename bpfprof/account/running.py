"""Threads of a recording -> when each was runnable, and when it was on a CPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.cpu_clock import Bursts
from bpfprof.account.threads import Int64Array
from bpfprof.model.spans import ThreadState

Bools = npt.NDArray[np.bool_]
# Where short waits and preemptions are in a burst is not known: it is cut into equal parts with so much time on a CPU,
# each of which has its part of all that the burst has.
_PART_NS = 10_000_000
_MOST_PARTS = 1 << 18  # of a group of threads


class Running(NamedTuple):
    """Times on the kernel's clock, (from, until) in two rows, in any order; those of one thread do not overlap.

    threads: whose the times in `runnable` are, places in the recording. spread_ns: of short waits and of what others
    took of its CPU, whose moments are not known.
    """

    runnable: Int64Array
    threads: Int64Array
    on_cpu: Int64Array
    spread_ns: int


def running_times(
    chosen: range, is_shown: Bools, bursts: Bursts, sums: npt.NDArray[np.void], woken_ns: Int64Array, end_ns: Int64Array
) -> Running:
    """Of the threads of a group that are shown. woken_ns, end_ns: from when to when it was runnable after each wait;
    sums: SUM_DTYPE."""
    ready_ns = np.zeros(len(bursts.start_ns), np.int64)
    ready_ns[bursts.before_wait + 1] = end_ns - woken_ns
    columns = [bursts.thread, bursts.start_ns, np.diff(bursts.edges), ready_ns]
    columns += [bursts.taken_ns, bursts.added_ns, bursts.unknown_ns]
    shown = is_shown[chosen.start : chosen.stop][bursts.thread]
    if not shown.all():
        columns = [column[shown] for column in columns]
    thread, start_ns, ran_ns, ready_ns, taken_ns, added_ns, unknown_ns = columns
    besides_ns, ready_part = taken_ns + added_ns + unknown_ns, _ready_parts(chosen, sums)[thread]
    within_ns = taken_ns + np.rint(added_ns * ready_part).astype(np.int64)
    cut = np.flatnonzero((besides_ns > 0) & (ran_ns > _PART_NS))
    counts = np.ones(len(ran_ns), np.int64)
    counts[cut] = np.minimum(-(-ran_ns[cut] // _PART_NS), _MOST_PARTS // max(1, len(cut))).clip(1)
    which, first = np.repeat(np.arange(len(counts)), counts), np.cumsum(counts) - counts
    begin_ns, of_cpu, of_ready = start_ns[which], ran_ns[which], within_ns[which]
    parts = np.flatnonzero((counts > 1)[which])
    burst = which[parts]
    number = parts - first[burst]

    def shares(of_bursts: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(what the parts before it have, what it has) of each part."""
        each, more = np.divmod(of_bursts[burst], counts[burst])
        return number * each + np.minimum(number, more), each + (number < more)

    begin_ns[parts] += shares(ran_ns + besides_ns)[0]
    of_cpu[parts], of_ready[parts] = shares(ran_ns)[1], shares(within_ns)[1]
    until_ns, from_ns = begin_ns + of_cpu, begin_ns.copy()
    from_ns[first] -= ready_ns
    on_cpu, runnable = np.stack([begin_ns, until_ns]), np.stack([from_ns, until_ns + of_ready])
    return Running(runnable, chosen.start + thread[which], on_cpu, int((added_ns + taken_ns).sum()))


def _ready_parts(chosen: range, sums: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """Of the short waits of each thread how much of their time it was runnable."""
    thread, is_ready = sums["thread"].astype(np.int64) - chosen.start, sums["state"] == ThreadState.RUNQUEUE
    all_ns = np.bincount(thread, sums["ns"], len(chosen))
    ready_ns = np.bincount(thread[is_ready], sums["ns"][is_ready], len(chosen))
    return np.asarray(ready_ns / np.maximum(all_ns, 1))
