"""The intervals of each thread, from the recording's rows: what ended, and what was still going on at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bpfprof.account.lent_stacks import NOT_SAMPLED, lend_stacks
from bpfprof.account.restarts import name_restarted
from bpfprof.model.samples import TOTAL_DTYPE, WAIT_DTYPE
from bpfprof.model.statuses import LastState
from bpfprof.recording.reader import Recording

_UNKNOWN, _ON_CPU, _RUNNABLE, _BLOCKED, _DEAD = (int(state) for state in LastState)
_BLOCK_ROWS = 1 << 16
_SUMS = {"time_ns", "blocked_ns", "runqueue_ns", "stolen_ns"}  # totals have something else by these names than waits


class RowsByThread:
    """Rows of a recording, a thread at a time; `last` are rows that come after a thread's others (one each at most).

    A row's place counts from 0 in the order of (thread, time), those of `last` included; `begin` has the place of the
    first row of each thread, and one more for the end.
    """

    def __init__(self, rows: npt.NDArray[np.void], last: npt.NDArray[np.void], thread_count: int) -> None:
        self._rows, self._last = rows, last
        order = np.lexsort((rows["time_ns"], rows["thread"]))
        numbers = np.arange(thread_count + 1)
        begin = np.searchsorted(rows["thread"], numbers, sorter=order)
        last_begin = np.searchsorted(last["thread"], numbers)
        # Numbers from len(rows) on are places in `last`.
        of_last = len(rows) + np.arange(len(last))
        self._order = np.insert(order, begin[last["thread"].astype(np.int64) + 1], of_last).astype(np.uint32)
        self._last_begin = last_begin
        self.begin: npt.NDArray[np.int64] = np.asarray(begin + last_begin, np.int64)

    def __len__(self) -> int:
        return len(self._rows) + len(self._last)

    @property
    def parts(self) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
        """All rows, not ordered by thread: those of the recording and those that come last."""
        return self._rows, self._last

    def in_order(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values of the rows of both parts, one after the other, put in the order of places."""
        return values[self._order]

    def of_thread(self, thread: int) -> npt.NDArray[np.void]:
        """The thread's rows in the order of time (a copy)."""
        return np.concatenate([rows for _, rows in self.blocks(thread)])

    def blocks(self, thread: int) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
        """The same, a bounded number at a time, each block with its first place; at least one, which may be empty."""
        begin, end = int(self.begin[thread]), int(self.begin[thread + 1])
        own_last = self._last[self._last_begin[thread] : self._last_begin[thread + 1]]
        end -= len(own_last)
        for place in range(begin, end, _BLOCK_ROWS):
            yield place, self._rows[self._order[place : min(end, place + _BLOCK_ROWS)]]
        yield end, own_last

    def is_open(self, thread: int) -> bool:
        """Whether the thread has a row that comes last."""
        return bool(self._last_begin[thread + 1] > self._last_begin[thread])

    def column(self, thread: int, name: str) -> npt.NDArray[Any]:
        """One field of the thread's rows."""
        return self.take(np.arange(self.begin[thread], self.begin[thread + 1]), name)

    def take(self, places: npt.NDArray[np.integer[Any]], name: str) -> npt.NDArray[Any]:
        """One field of the rows at these places."""
        number = self._order[places]
        is_last = number >= len(self._rows)
        if not is_last.any():
            return np.asarray(self._rows[name][number])
        values = np.empty((len(places), *self._rows[name].shape[1:]), self._rows[name].dtype)
        values[~is_last] = self._rows[name][number[~is_last]]
        values[is_last] = self._last[name][number[is_last] - np.uint32(len(self._rows))]
        return values

    def counts(self) -> npt.NDArray[np.intp]:
        """How many rows each thread has."""
        return np.diff(self.begin)

    def count_of(self, stacks: npt.NDArray[np.bool_]) -> int:
        """How many rows have one of these stacks."""
        return sum(int(np.count_nonzero(stacks[rows["stack"]])) for rows in (self._rows, self._last))

    def status_counts(self) -> npt.NDArray[np.intp]:
        """How many rows have each status."""
        return np.bincount(self._rows["status"], minlength=256) + np.bincount(self._last["status"], minlength=256)

    def count_with_lent_stacks(self) -> int:
        """How many rows that were not sampled have a stack: see lent_stacks.py."""
        return sum(int(((rows["status"] == NOT_SAMPLED) & (rows["stack"] > 0)).sum()) for rows in self.parts)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Rows by thread, in the order of time; the waits include those that had not ended. Arrays of threads are by index.

    on_cpu_ns is the scheduler's own total up to end_ns; blocked_ns and runqueue_ns are what the rows and the sums of
    short waits hold, so what is lost of them is missing from the wall time. runqueue_ns includes stolen time, as the
    kernel side added it up: runnable, but the hypervisor ran something else.
    """

    start_ns: int
    end_ns: int
    samples: RowsByThread
    waits: RowsByThread
    first_ns: npt.NDArray[np.int64]
    last_ns: npt.NDArray[np.int64]
    on_cpu_ns: npt.NDArray[np.int64]
    blocked_ns: npt.NDArray[np.int64]
    runqueue_ns: npt.NDArray[np.int64]
    open_stolen_ns: npt.NDArray[np.int64]  # stolen from a burst that no wait follows: it runs, or ended in death
    derived_ns: npt.NDArray[np.int64]  # waits of an unfinished recording that are not in it


def collect_intervals(recording: Recording) -> Intervals:
    """Works for a recording without an end too: it then ends with the last thing that was seen."""
    samples, waits = recording.samples, recording.waits
    start_ns = int(recording.start.get("start_ns", 0))
    times = [rows["time_ns"].max() for rows in (samples, waits, recording.totals) if len(rows)]
    end_ns = int(recording.end.get("end_ns") or max([start_ns, *map(int, times)]))
    totals = _last_totals(recording)
    open_ns = np.maximum(0, np.where(totals["state"] == _DEAD, 0, end_ns - totals["since_ns"].astype(np.int64)))
    state = totals["state"]
    woken = (state == _BLOCKED) & (totals["wake_ns"] > totals["since_ns"])
    waiting_ns = np.where(woken, end_ns - totals["wake_ns"].astype(np.int64), 0).clip(0)
    waiting_ns = np.where(state == _RUNNABLE, open_ns, waiting_ns)
    sleeping_ns = np.where(state == _BLOCKED, open_ns - waiting_ns, 0)
    is_running = (state == _ON_CPU) | (state == _UNKNOWN)
    running_ns = np.where(is_running, open_ns, 0)
    if recording.end:
        running_ns = np.minimum(running_ns, totals["running_ns"].astype(np.int64))
    open_stolen_ns = np.where(is_running, open_ns - running_ns, 0)
    derived_ns = np.zeros(len(totals), np.int64)
    if not recording.end:
        derived_ns, running_ns = _settle_short_waits(recording, totals, running_ns)
    first_ns = totals["first_ns"].astype(np.int64)
    # What no wait in the file speaks for was stolen from the last burst: before the wait that had not ended, before
    # death, or before the short waits since the last wait that has a row.
    told = np.bincount(waits["thread"], weights=waits["stolen_ns"], minlength=len(totals)).astype(np.int64)
    untold_stolen_ns = np.maximum(0, totals["stolen_ns"].astype(np.int64) - told)
    unended = _unended_waits(totals, untold_stolen_ns, sleeping_ns, waiting_ns, end_ns)
    name_restarted(waits, unended)
    lend_stacks(waits, unended)
    thread_count = len(recording.threads)
    tables = waits, unended, recording.short_waits
    stolen_ns = totals["stolen_ns"].astype(np.int64) + open_stolen_ns
    return Intervals(
        start_ns,
        end_ns,
        RowsByThread(samples, samples[:0], thread_count),
        RowsByThread(waits, unended, thread_count),
        first_ns,
        np.maximum(first_ns, np.where(state == _DEAD, totals["since_ns"].astype(np.int64), end_ns)),
        totals["on_cpu_ns"].astype(np.int64) + running_ns,
        _sums_of(tables, "blocked_ns", thread_count) + derived_ns,
        _sums_of(tables, "runqueue_ns", thread_count) + stolen_ns,
        np.where(is_running | (state == _DEAD), open_stolen_ns + untold_stolen_ns, 0),
        derived_ns,
    )


def sums_by(index: npt.NDArray[Any], values: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """Sum of the values for each index below `count`; exact below 2**53 (in nanoseconds 104 days)."""
    return np.bincount(index, weights=values, minlength=count).clip(0, float(1 << 62)).astype(np.int64)


def _sums_of(tables: Iterable[npt.NDArray[np.void]], name: str, thread_count: int) -> npt.NDArray[np.int64]:
    """Of each thread the sum of this field over the rows of all tables."""
    parts = [sums_by(rows["thread"], rows[name], thread_count) for rows in tables]
    return np.asarray(np.sum(parts, axis=0), np.int64)


def _has_short_waits(recording: Recording) -> bool:
    return bool(recording.start.get("min_block_us")) or len(recording.short_waits) > 0


def _last_totals(recording: Recording) -> npt.NDArray[np.void]:
    """One row of TOTAL_DTYPE a thread: the last in the file, brought up to date where later waits are in the file."""
    rows = np.zeros(len(recording.threads), TOTAL_DTYPE)
    rows["first_ns"] = [thread.first_ns for thread in recording.threads]
    rows["since_ns"], rows["time_ns"], rows["syscall"] = rows["first_ns"], rows["first_ns"], -1
    totals = recording.totals[np.argsort(recording.totals["time_ns"], kind="stable")]
    first_ns = rows["first_ns"].copy()
    rows[totals["thread"]] = totals  # the last of equal indices wins
    rows["thread"], rows["first_ns"] = np.arange(len(rows)), first_ns
    if not recording.end:
        _follow_waits(rows, recording.waits, _has_short_waits(recording))
    return rows


def _follow_waits(rows: npt.NDArray[np.void], waits: npt.NDArray[np.void], has_short_waits: bool) -> None:
    """Adds waits that ended after a thread's totals were taken; after each it was on a CPU.

    Those are the waits after since_ns: time_ns is read a moment before the totals and may miss one that is in them.
    Time between them that is neither CPU time nor stolen went by in short waits, if there are any.
    """
    is_later = (waits["time_ns"] > rows["since_ns"][waits["thread"]]) & (rows["state"][waits["thread"]] != _DEAD)
    places = np.flatnonzero(is_later)
    places = places[np.lexsort((waits["time_ns"][places], waits["thread"][places]))]
    thread = waits["thread"][places]
    is_first = np.diff(thread, prepend=-1) != 0
    later = waits[places]
    if has_short_waits and len(later):
        since = np.where(is_first, rows["since_ns"][thread], np.roll(later["time_ns"], 1))
        ran = np.where(is_first, rows["on_cpu_ns"][thread], np.roll(later["on_cpu_ns"], 1))
        left = later["time_ns"] - (later["blocked_ns"] + later["runqueue_ns"])
        short_ns = (left - since).astype(np.int64) - (later["on_cpu_ns"] - ran + later["stolen_ns"]).astype(np.int64)
        np.add.at(rows["blocked_ns"], thread, short_ns.clip(0).astype(np.uint64))
    for name in ("blocked_ns", "runqueue_ns", "stolen_ns"):
        np.add.at(rows[name], thread, later[name])
    rows["on_cpu_ns"][thread] = later["on_cpu_ns"]
    rows["since_ns"][thread] = later["time_ns"]
    rows["state"][thread] = _ON_CPU


def _settle_short_waits(
    recording: Recording, totals: npt.NDArray[np.void], running_ns: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(waits that were lost with the end of the recording, running_ns without later short waits)."""
    tables = recording.waits, recording.short_waits
    told_ns = sum(_sums_of(tables, name, len(totals)) for name in ("blocked_ns", "runqueue_ns"))
    lost_ns = (totals["blocked_ns"] + totals["runqueue_ns"]).astype(np.int64) - told_ns
    # Sums that came after the last wait are of the time since then.
    late_ns = np.minimum((-lost_ns).clip(0), running_ns)
    return lost_ns.clip(0), running_ns - late_ns


def _unended_waits(
    totals: npt.NDArray[np.void],
    stolen_ns: npt.NDArray[np.int64],
    sleeping_ns: npt.NDArray[np.int64],
    waiting_ns: npt.NDArray[np.int64],
    end_ns: int,
) -> npt.NDArray[np.void]:
    rows = np.zeros(len(totals), WAIT_DTYPE)
    for name in set(WAIT_DTYPE.names or ()) & set(TOTAL_DTYPE.names or ()) - _SUMS:
        rows[name] = totals[name]
    rows["time_ns"], rows["blocked_ns"], rows["runqueue_ns"] = end_ns, sleeping_ns, waiting_ns
    rows["stolen_ns"] = stolen_ns
    return rows[(sleeping_ns > 0) | (waiting_ns > 0)]
