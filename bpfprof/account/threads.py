"""Recording -> what its threads did: their rows by thread, and what was still going on at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.columns import Columns
from bpfprof.account.sorted_rows import sorted_rows
from bpfprof.dataclass import dataclass
from bpfprof.model.grouping import sums_by
from bpfprof.model.rows import blocks
from bpfprof.model.samples import TOTAL_DTYPE, WAIT_DTYPE
from bpfprof.model.statuses import LastState
from bpfprof.recording.contents import Recording

Int64Array = npt.NDArray[np.int64]
_BLOCK_ROWS = 1 << 16
_SUMS = {"time_ns", "blocked_ns", "runqueue_ns", "stolen_ns"}  # totals have something else by these names than waits


class RowsByThread:
    """Rows of a recording by thread and time; `last` are rows that come after a thread's others (one each at most).

    A row's place counts from 0 in the order of (thread, time), those of `last` included; `begin` has the place of the
    first row of each thread, and one more for the end. Many rows are on disk, and only some of them in memory.
    """

    def __init__(self, rows: npt.NDArray[np.void], last: npt.NDArray[np.void], thread_count: int) -> None:
        self._sorted = sorted_rows(rows, last, thread_count)
        self.begin = self._sorted.begin

    def __len__(self) -> int:
        return int(self.begin[-1])

    def blocks(self, places: slice | None = None) -> Iterator[slice]:
        """Places, a bounded number at a time; all if none are given."""
        own = slice(0, len(self)) if places is None else places
        return (slice(at, min(own.stop, at + _BLOCK_ROWS)) for at in range(own.start, own.stop, _BLOCK_ROWS))

    def rows(self, places: slice) -> Columns:
        """The rows at places that follow one another."""
        return Columns(places.stop - places.start, lambda name: self.column(name, places))

    def column(self, name: str, places: slice | npt.NDArray[np.integer[Any]] = slice(None)) -> npt.NDArray[Any]:
        """One field of the rows at these places, which nobody changes."""
        if isinstance(places, slice):
            begin, end, _ = places.indices(len(self))
            return self._sorted.column(name, begin, end)
        begin, end = (int(places.min()), int(places.max()) + 1) if len(places) else (0, 0)
        return np.asarray(self._sorted.column(name, begin, end)[places - begin])


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
    times = [block["time_ns"].max() for rows in (samples, waits, recording.totals) for block in blocks(rows)]
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
    waited_ns, told_stolen_ns = _booked(waits, len(totals))
    untold_stolen_ns = (stolen_ns - told_stolen_ns).clip(0)
    unended = _unended_waits(totals, untold_stolen_ns, sleeping_ns, waiting_ns, last_ns)
    return Threads(
        start_ns,
        end_ns,
        RowsByThread(samples, samples[:0], len(totals)),
        RowsByThread(waits, unended, len(totals)),
        first_ns,
        np.maximum(first_ns, np.where(is_dead, np.minimum(since_ns, end_ns), last_ns)),
        totals["on_cpu_ns"].astype(np.int64) + running_ns,
        waited_ns + _booked(unended, len(totals))[0] + stolen_ns + open_stolen_ns,
        np.where((sleeping_ns > 0) | (waiting_ns > 0), 0, open_stolen_ns + untold_stolen_ns),
    )


def _booked(rows: npt.NDArray[np.void], count: int) -> tuple[Int64Array, Int64Array]:
    """For each thread (how long the rows waited, blocked and runnable; what was stolen)."""
    waited_ns, stolen_ns = np.zeros((2, count), np.int64)
    for block in blocks(rows):
        thread = block["thread"]
        waited_ns += sums_by(thread, block["blocked_ns"], count) + sums_by(thread, block["runqueue_ns"], count)
        stolen_ns += sums_by(thread, block["stolen_ns"], count)
    return waited_ns, stolen_ns


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
