"""When threads ran -> for how long how many of them did at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.running import Running
from bpfprof.account.threads import Int64Array
from bpfprof.model.profile import CONCURRENCY_DTYPE, Concurrency
from bpfprof.model.rows import FiledRows, out_of_memory, picked

# A begin or an end of a time: twice when it was, and 1 more for a begin, so that ends come first.
_CHANGE_DTYPE = np.dtype([("change", "<i8")])
_MOST_NS = 1 << 61
_AT_A_TIME, _BINS = 1 << 18, 4096  # changes that are sorted together; parts of the time by which they are told apart
_MOST_BYTES = 4 << 20  # of changes in memory, twice; they are beside rows of other kinds


class ConcurrencyTimes:
    """Groups of threads are added one after the other."""

    def __init__(self) -> None:
        self._changes = {name: _Changes() for name in ("on_cpu_ns", "runnable_ns")}
        self._spread_ns = 0

    def add(self, running: Running) -> None:
        """Of some threads."""
        self._spread_ns += running.spread_ns
        for name, times in (("on_cpu_ns", running.on_cpu), ("runnable_ns", running.runnable)):
            self._changes[name].add(times)

    def found(self, window_ns: tuple[int, int]) -> Concurrency:
        """In this time of the kernel's clock."""
        lengths = {name: _lengths(changes.in_order(), *window_ns) for name, changes in self._changes.items()}
        longest = max(map(len, lengths.values()))
        rows = np.zeros(longest, CONCURRENCY_DTYPE)
        rows["threads"] = np.arange(longest)
        for name, ns in lengths.items():
            rows[name][: len(ns)] = ns
        return Concurrency(picked(rows, (rows["on_cpu_ns"] > 0) | (rows["runnable_ns"] > 0)), self._spread_ns)


class _Changes:
    """Runs of changes in the order of time, one after the other in a file where they are many."""

    def __init__(self) -> None:
        self._rows, self._ends = FiledRows(_CHANGE_DTYPE, _MOST_BYTES), [0]

    def add(self, times: Int64Array) -> None:
        """(from, until) in two rows."""
        times = times[:, times[1] > times[0]]
        if times.size and (int(times.min()) < 0 or int(times.max()) > _MOST_NS):  # of a damaged recording
            times = times.clip(0, _MOST_NS)
        changes = (times << 1).reshape(-1)
        changes[: times.shape[1]] |= 1
        changes.sort(kind="stable")  # of each thread they are in their order already
        self._rows.append(changes.view(_CHANGE_DTYPE))
        self._ends.append(self._ends[-1] + len(changes))

    def in_order(self) -> Iterator[Int64Array]:
        """All of them, a bounded number at a time where not too many are at one."""
        rows = self._rows.view()
        runs = [rows["change"][begin:end] for begin, end in zip(self._ends, self._ends[1:]) if end > begin]
        if not runs:
            return
        first, last = min(int(run[0]) for run in runs), max(int(run[-1]) for run in runs)
        edges = first + np.arange(_BINS + 1) * ((last - first) // _BINS + 1)
        places = np.zeros((len(runs), len(edges)), np.int64)
        for run, place in zip(runs, places):
            place[:] = np.searchsorted(run, edges)
            out_of_memory(rows)
        for begin, end in _parts_of(np.diff(places.sum(axis=0)).tolist()):
            part = np.concatenate([run[at[begin] : at[end]] for run, at in zip(runs, places)])
            out_of_memory(rows)
            part.sort(kind="stable")
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


def _lengths(changes: Iterator[Int64Array], begin_ns: int, end_ns: int) -> Int64Array:
    """For each number of threads for how long so many did."""
    found, level, at_ns = np.zeros(1, np.int64), 0, begin_ns
    for part in changes:
        levels = level + np.append(0, np.cumsum((part & 1) * 2 - 1))
        times = np.clip(np.append(at_ns, part >> 1), begin_ns, end_ns)
        lengths = np.bincount(levels[:-1], np.diff(times)).astype(np.int64)
        found = _longer(found, max(len(lengths), int(levels[-1]) + 1))
        found[: len(lengths)] += lengths
        level, at_ns = int(levels[-1]), int(times[-1])
    found[level] += max(0, end_ns - at_ns)
    return found


def _longer(lengths: Int64Array, count: int) -> npt.NDArray[np.int64]:
    return np.append(lengths, np.zeros(max(0, count - len(lengths)), np.int64))
