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
    shown = is_shown[chosen.start : chosen.stop][bursts.thread]
    start_ns, ran_ns = bursts.start_ns, np.diff(bursts.edges)
    ready_ns = np.zeros(len(start_ns), np.int64)
    ready_ns[bursts.before_wait + 1] = end_ns - woken_ns
    is_cut = bursts.added_ns + bursts.unknown_ns + bursts.taken_ns > 0
    whole, cut = shown & ~is_cut, np.flatnonzero(shown & is_cut)
    until_ns = start_ns + ran_ns
    runnable = [np.stack([start_ns - ready_ns, until_ns])[:, whole], np.stack([start_ns - ready_ns, start_ns])[:, cut]]
    on_cpu = [np.stack([start_ns, until_ns])[:, whole]]
    length_ns = (ran_ns + bursts.taken_ns + bursts.added_ns + bursts.unknown_ns)[cut]
    ready_part = _ready_parts(chosen, sums)[bursts.thread[cut]]
    waited_ns = np.rint(bursts.added_ns[cut] * ready_part).astype(np.int64)
    counts = np.minimum(-(-ran_ns[cut] // _PART_NS), _MOST_PARTS // max(1, len(cut))).clip(1)
    which = np.repeat(np.arange(len(cut)), counts)
    number = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)

    def shares(of_bursts: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(what the parts before it have, what it has) of each part."""
        each, more = np.divmod(of_bursts, counts)
        before = number * each[which] + np.minimum(number, more[which])
        return before, each[which] + (number < more[which])

    begin_ns = start_ns[cut][which] + shares(length_ns)[0]
    of_cpu, of_ready = shares(ran_ns[cut])[1], shares(bursts.taken_ns[cut] + waited_ns)[1]
    on_cpu.append(np.stack([begin_ns, begin_ns + of_cpu]))
    runnable.append(np.stack([begin_ns, begin_ns + of_cpu + of_ready]))
    spread_ns = int((bursts.added_ns + bursts.taken_ns)[cut].sum())
    threads = chosen.start + np.concatenate([bursts.thread[each] for each in (whole, cut, cut[which])])
    return Running(np.concatenate(runnable, axis=1), threads, np.concatenate(on_cpu, axis=1), spread_ns)


def _ready_parts(chosen: range, sums: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """Of the short waits of each thread how much of their time it was runnable."""
    thread, is_ready = sums["thread"].astype(np.int64) - chosen.start, sums["state"] == ThreadState.RUNQUEUE
    all_ns = np.bincount(thread, sums["ns"], len(chosen))
    ready_ns = np.bincount(thread[is_ready], sums["ns"][is_ready], len(chosen))
    return np.asarray(ready_ns / np.maximum(all_ns, 1))
