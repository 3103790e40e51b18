"""When threads ran -> for how long how many of them did at a time, and for how long each was the only one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bpfprof.account.running import Running
from bpfprof.account.threads import Int64Array
from bpfprof.model.ahead import second_thread
from bpfprof.model.grouping import sums_by
from bpfprof.model.profile import CONCURRENCY_DTYPE, Concurrency
from bpfprof.model.rows import FiledRows, out_of_memory, picked

# A begin or an end of a time: bits of when it was, then 1 for a begin, so that ends come first, then of the thread.
_CHANGE_DTYPE = np.dtype([("change", "<i8")])
_MOST_BITS = 63
_AT_A_TIME, _BINS = 1 << 18, 4096  # changes that are sorted together; parts of the time by which they are told apart
_MOST_BYTES = 4 << 20  # of changes in memory, twice; they are beside rows of other kinds


class GroupChanges(NamedTuple):
    """Of a group of threads, in the order of time."""

    on_cpu: Int64Array
    runnable: Int64Array
    spread_ns: int


class ConcurrencyTimes:
    """Groups of threads are added one after the other."""

    def __init__(self, thread_count: int, clock_ns: tuple[int, int], tells_alone: bool = True) -> None:
        """Of so many threads; no time before or after these is asked for. tells_alone: all of them are added."""
        self._thread_count, self._tells_alone = thread_count, tells_alone
        self._on_cpu, self._runnable = _Changes(1, clock_ns), _Changes(thread_count if tells_alone else 1, clock_ns)
        self._spread_ns = 0

    def changes(self, running: Running) -> GroupChanges:
        """What add() takes, of some threads; another thread of the program may make it."""
        on_cpu, runnable = self._on_cpu.of(running.on_cpu, 0), self._runnable.of(running.runnable, running.threads)
        return GroupChanges(on_cpu, runnable, running.spread_ns)

    def add(self, changes: GroupChanges) -> None:
        """Of some threads."""
        self._spread_ns += changes.spread_ns
        self._on_cpu.add(changes.on_cpu)
        self._runnable.add(changes.runnable)

    def found(self, window_ns: tuple[int, int]) -> Concurrency:
        """In this time of the kernel's clock."""
        with second_thread() as other:
            of_runnable = other.submit(self._runnable.lengths, *window_ns)
            on_cpu_ns, _ = self._on_cpu.lengths(*window_ns)
            runnable_ns, alone_ns = of_runnable.result()
        rows = np.zeros(max(len(on_cpu_ns), len(runnable_ns)), CONCURRENCY_DTYPE)
        rows["threads"] = np.arange(len(rows))
        rows["on_cpu_ns"][: len(on_cpu_ns)], rows["runnable_ns"][: len(runnable_ns)] = on_cpu_ns, runnable_ns
        rows = picked(rows, (rows["on_cpu_ns"] > 0) | (rows["runnable_ns"] > 0))
        is_known = self._tells_alone and len(alone_ns) == self._thread_count
        return Concurrency(rows, self._spread_ns, alone_ns if is_known else None)


class _Changes:
    """Runs of changes in the order of time, one after the other in a file where they are many."""

    def __init__(self, thread_count: int, clock_ns: tuple[int, int]) -> None:
        """Where threads have no room in a change they are all one: then it is not known who was the only one."""
        self._rows, self._ends = FiledRows(_CHANGE_DTYPE, _MOST_BYTES), [0]
        self._begin_ns, self._end_ns = clock_ns[0], min(clock_ns[1], clock_ns[0] + (1 << _MOST_BITS - 2))
        room = _MOST_BITS - 1 - (self._end_ns - self._begin_ns).bit_length()
        bits = (thread_count - 1).bit_length()
        self._thread_count, self._bits = (thread_count, bits) if bits <= room else (1, 0)

    def of(self, times: Int64Array, threads: Int64Array | int) -> Int64Array:
        """A run of times, (from, until) in two rows."""
        times = (times.clip(self._begin_ns, self._end_ns) - self._begin_ns) << (self._bits + 1)
        is_some = times[1] > times[0]
        times[0] |= 1 << self._bits
        if self._bits:
            times |= threads
        changes: Int64Array = times.T[is_some].reshape(-1)
        changes.sort(kind="stable")  # of each thread they are in their order already
        return changes

    def add(self, changes: Int64Array) -> None:
        """One run."""
        self._rows.append(changes.view(_CHANGE_DTYPE))
        self._ends.append(self._ends[-1] + len(changes))

    def lengths(self, begin_ns: int, end_ns: int) -> tuple[Int64Array, Int64Array]:
        """(for each number of threads for how long so many did, for each thread for how long it alone did)"""
        found, alone = np.zeros(1, np.int64), np.zeros(self._thread_count, np.int64)
        level = who = 0  # how many, and the sum of their numbers, which is that of the only one
        at_ns = begin_ns
        for part in self._in_order():
            steps = (part >> self._bits & 1) * 2 - 1
            levels = level + np.append(0, np.cumsum(steps))
            sums = who + np.append(0, np.cumsum(steps * (part & (1 << self._bits) - 1)))
            times = np.append(at_ns, (part >> (self._bits + 1)) + self._begin_ns).clip(begin_ns, end_ns)
            ns = np.diff(times)
            is_one = levels[:-1] == 1
            alone += sums_by(sums[:-1][is_one], ns[is_one], len(alone))
            lengths = sums_by(levels[:-1], ns, max(len(found), int(levels.max()) + 1))
            lengths[: len(found)] += found
            found, level, who, at_ns = lengths, int(levels[-1]), int(sums[-1]), int(times[-1])
        found[0] += max(0, end_ns - at_ns)  # each has ended
        return found, alone

    def _in_order(self) -> Iterator[Int64Array]:
        """All of them, a bounded number at a time where not too many are at one."""
        rows = self._rows.view()
        runs = [rows["change"][begin:end] for begin, end in zip(self._ends, self._ends[1:]) if end > begin]
        if not runs:
            return
        first, last = min(int(run[0]) for run in runs), max(int(run[-1]) for run in runs)
        width = (last - first) // _BINS + 1
        edges = np.array([min(first + place * width, last + 1) for place in range(_BINS + 1)])  # none beyond 63 bits
        places = np.zeros((len(runs), len(edges)), np.int64)
        for run, place in zip(runs, places):
            place[:] = np.searchsorted(run, edges)
            out_of_memory(rows)
        for begin, end in _parts_of(np.diff(places.sum(axis=0)).tolist()):
            part = np.concatenate([run[at[begin] : at[end]] for run, at in zip(runs, places)])
            out_of_memory(rows)
            part.sort()
            yield part


def _parts_of(counts: list[int]) -> Iterator[tuple[int, int]]:
    """(from, until) of bins that have a bounded number together, or are one; not of none."""
    begin = held = 0
    for place, count in enumerate(counts):
        if held and held + count > _AT_A_TIME:
            yield begin, place
            begin, held = place, 0
        held += count
    if held:
        yield begin, len(counts)
