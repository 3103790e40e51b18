"""Recording -> what its threads did: their rows by thread, and what was still going on at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.samples import TOTAL_DTYPE, WAIT_DTYPE
from bpfprof.model.statuses import LastState
from bpfprof.recording.reader import Recording

Int64Array = npt.NDArray[np.int64]
_BLOCK_ROWS = 1 << 16
_SUMS = {"time_ns", "blocked_ns", "runqueue_ns", "stolen_ns"}  # totals have something else by these names than waits


class RowsByThread:
    """Rows of a recording, a thread at a time; `last` are rows that come after a thread's others (one each at most).

    The reader's arrays are not copied. A row's place counts from 0 in the order of (thread, time), those of `last`
    included; `begin` has the place of the first row of each thread, and one more for the end.
    """

    def __init__(self, rows: npt.NDArray[np.void], last: npt.NDArray[np.void], thread_count: int) -> None:
        self.parts = rows, last
        order = np.lexsort((rows["time_ns"], rows["thread"]))
        numbers = np.arange(thread_count + 1)
        begin = np.searchsorted(rows["thread"], numbers, sorter=order)
        last_begin = np.searchsorted(last["thread"], numbers)
        # Numbers from len(rows) on are places in `last`.
        of_last = len(rows) + np.arange(len(last))
        self._order = np.insert(order, begin[last["thread"].astype(np.int64) + 1], of_last).astype(np.uint32)
        self.begin: Int64Array = np.asarray(begin + last_begin, np.int64)

    def of_thread(self, thread: int) -> slice:
        """The places of a thread's rows."""
        return self.of_threads(range(thread, thread + 1))

    def of_threads(self, threads: range) -> slice:
        """The places of the rows of threads that follow one another."""
        return slice(int(self.begin[threads.start]), int(self.begin[threads.stop]))

    def blocks(self, threads: range) -> Iterator[slice]:
        """The same, a bounded number at a time."""
        own = self.of_threads(threads)
        return (slice(at, min(own.stop, at + _BLOCK_ROWS)) for at in range(own.start, own.stop, _BLOCK_ROWS))

    def column(self, name: str, places: slice | npt.NDArray[np.integer[Any]] = slice(None)) -> npt.NDArray[Any]:
        """One field of the rows at these places."""
        rows, last = self.parts
        number = self._order[places]
        is_last = number >= len(rows)
        if not is_last.any():
            return np.asarray(rows[name][number])
        values = np.empty((len(number), *rows[name].shape[1:]), rows[name].dtype)
        values[~is_last] = rows[name][number[~is_last]]
        values[is_last] = last[name][number[is_last] - np.uint32(len(rows))]
        return values

    def in_order(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values of the rows of both parts, one after the other, put in the order of places."""
        return values[self._order]


@dataclass(frozen=True)
class Threads:
    """Rows of samples and waits, the waits that had not ended included; arrays of threads are by index.

    first_ns and last_ns: from when to when each was watched. on_cpu_ns is the scheduler's own total. off_cpu_ns is what
    the rows of waits hold, blocked and runnable, and what was stolen from the thread on a CPU.
    """

    start_ns: int
    end_ns: int
    samples: RowsByThread
    waits: RowsByThread
    first_ns: Int64Array
    last_ns: Int64Array
    on_cpu_ns: Int64Array
    off_cpu_ns: Int64Array
    open_stolen_ns: Int64Array  # stolen since the last wait with a row: the thread runs, or has ended


def collect_threads(recording: Recording) -> Threads:
    """Works for a recording without an end too: it then ends with the last thing that was seen."""
    samples, waits = recording.samples, recording.waits
    start_ns = int(recording.start.get("start_ns", 0))
    times = [rows["time_ns"].max() for rows in (samples, waits, recording.totals) if len(rows)]
    end_ns = int(recording.end.get("end_ns") or max([start_ns, *map(int, times)]))
    totals = _last_totals(recording)
    state, since_ns, wake_ns = (totals[name].astype(np.int64) for name in ("state", "since_ns", "wake_ns"))
    last_ns = np.array([min(thread.last_ns, end_ns) or end_ns for thread in recording.threads], np.int64)
    is_dead = state == LastState.DEAD
    open_ns = np.where(is_dead, 0, last_ns - since_ns).clip(0)
    woken = (state == LastState.BLOCKED) & (wake_ns > since_ns)
    waiting_ns = np.where(woken, last_ns - wake_ns, 0).clip(0)
    waiting_ns = np.where(state == LastState.RUNNABLE, open_ns, waiting_ns)
    sleeping_ns = np.where(state == LastState.BLOCKED, open_ns - waiting_ns, 0)
    is_running = (state == LastState.ON_CPU) | (state == LastState.UNKNOWN)
    running_ns = np.where(is_running, open_ns, 0)
    if recording.end:
        running_ns = np.minimum(running_ns, totals["running_ns"].astype(np.int64))
    open_stolen_ns = np.where(is_running, open_ns - running_ns, 0)
    first_ns = totals["first_ns"].astype(np.int64)
    # What no wait in the file speaks for was stolen from the last time on a CPU: before the wait that had not ended,
    # before death, or before the short waits since the last wait that has a row.
    stolen_ns = totals["stolen_ns"].astype(np.int64)
    untold_stolen_ns = (stolen_ns - sums_by(waits["thread"], waits["stolen_ns"], len(totals))).clip(0)
    unended = _unended_waits(totals, untold_stolen_ns, sleeping_ns, waiting_ns, last_ns)
    columns = [(rows, name) for rows in (waits, unended) for name in ("blocked_ns", "runqueue_ns")]
    booked_ns = np.sum([sums_by(rows["thread"], rows[name], len(totals)) for rows, name in columns], axis=0)
    return Threads(
        start_ns,
        end_ns,
        RowsByThread(samples, samples[:0], len(totals)),
        RowsByThread(waits, unended, len(totals)),
        first_ns,
        np.maximum(first_ns, np.where(is_dead, since_ns, last_ns)),
        totals["on_cpu_ns"].astype(np.int64) + running_ns,
        booked_ns + stolen_ns + open_stolen_ns,
        np.where((sleeping_ns > 0) | (waiting_ns > 0), 0, open_stolen_ns + untold_stolen_ns),
    )


def sums_by(index: npt.NDArray[Any], values: npt.NDArray[Any], count: int) -> Int64Array:
    """Sum of the values for each index below `count`; exact below 2**53 (in nanoseconds 104 days)."""
    return np.bincount(index, weights=values, minlength=count).clip(0, float(1 << 62)).astype(np.int64)


def _last_totals(recording: Recording) -> npt.NDArray[np.void]:
    """One row of TOTAL_DTYPE a thread: the last in the file, brought up to date where later waits are in the file."""
    rows = np.zeros(len(recording.threads), TOTAL_DTYPE)
    first_ns = np.array([thread.first_ns for thread in recording.threads], np.uint64)
    rows["since_ns"], rows["time_ns"], rows["syscall"] = first_ns, first_ns, -1
    totals = recording.totals[np.argsort(recording.totals["time_ns"], kind="stable")]
    rows[totals["thread"]] = totals  # the last of equal indices wins
    rows["thread"], rows["first_ns"] = np.arange(len(rows)), first_ns
    if not recording.end:
        _follow_waits(rows, recording.waits)
    return rows


def _follow_waits(rows: npt.NDArray[np.void], waits: npt.NDArray[np.void]) -> None:
    """Adds waits that ended after a thread's totals were taken; after each it was on a CPU.

    Those are the waits after since_ns: time_ns is read a moment before the totals and may miss one that is in them.
    """
    is_later = waits["time_ns"] > rows["since_ns"][waits["thread"]]
    places = np.flatnonzero(is_later & (rows["state"][waits["thread"]] != LastState.DEAD))
    later = waits[places[np.lexsort((waits["time_ns"][places], waits["thread"][places]))]]
    thread = later["thread"]
    np.add.at(rows["stolen_ns"], thread, later["stolen_ns"])
    rows["on_cpu_ns"][thread] = later["on_cpu_ns"]
    rows["since_ns"][thread] = later["time_ns"]
    rows["state"][thread] = LastState.ON_CPU


def _unended_waits(
    totals: npt.NDArray[np.void],
    stolen_ns: Int64Array,
    sleeping_ns: Int64Array,
    waiting_ns: Int64Array,
    last_ns: Int64Array,
) -> npt.NDArray[np.void]:
    rows = np.zeros(len(totals), WAIT_DTYPE)
    for name in set(WAIT_DTYPE.names or ()) & set(TOTAL_DTYPE.names or ()) - _SUMS:
        rows[name] = totals[name]
    rows["time_ns"], rows["blocked_ns"], rows["runqueue_ns"] = last_ns, sleeping_ns, waiting_ns
    rows["stolen_ns"] = stolen_ns
    return rows[(sleeping_ns > 0) | (waiting_ns > 0)]
