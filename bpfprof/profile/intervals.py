"""The intervals of each thread, from the recording's rows: what ended, and what was still going on at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bpfprof import abi
from bpfprof.model.samples import TOTAL_DTYPE, WAIT_DTYPE
from bpfprof.recording.reader import Recording

_UNKNOWN, _ON_CPU = int(abi.ThreadState["BP_THREAD_UNKNOWN"]), int(abi.ThreadState["BP_THREAD_ON_CPU"])
_RUNNABLE, _BLOCKED = int(abi.ThreadState["BP_THREAD_RUNNABLE"]), int(abi.ThreadState["BP_THREAD_BLOCKED"])
_BLOCK_ROWS = 1 << 16
_DEAD = int(abi.ThreadState["BP_THREAD_DEAD"])


class RowsByThread:
    """Rows of a recording, a thread at a time; `last` are rows that come after a thread's others (one each at most)."""

    def __init__(self, rows: npt.NDArray[np.void], last: npt.NDArray[np.void], thread_count: int) -> None:
        self._rows, self._last = rows, last
        self._order = np.lexsort((rows["time_ns"], rows["thread"])).astype(np.uint32)
        numbers = np.arange(thread_count + 1)
        self._begin = np.searchsorted(rows["thread"], numbers, sorter=self._order)
        self._last_begin = np.searchsorted(last["thread"], numbers)

    def __len__(self) -> int:
        return len(self._rows) + len(self._last)

    def of_thread(self, thread: int) -> npt.NDArray[np.void]:
        """The thread's rows in the order of time (a copy)."""
        return np.concatenate(list(self.blocks(thread)))

    def blocks(self, thread: int) -> Iterator[npt.NDArray[np.void]]:
        """The same, a bounded number at a time; at least one block, which may be empty."""
        begin, end = int(self._begin[thread]), int(self._begin[thread + 1])
        for position in range(begin, end, _BLOCK_ROWS):
            yield self._rows[self._order[position : min(end, position + _BLOCK_ROWS)]]
        yield self._last[self._last_begin[thread] : self._last_begin[thread + 1]]

    def column(self, thread: int, name: str) -> npt.NDArray[Any]:
        """One field of the thread's rows."""
        order = self._order[self._begin[thread] : self._begin[thread + 1]]
        last = self._last[self._last_begin[thread] : self._last_begin[thread + 1]]
        return np.concatenate([self._rows[name][order], last[name]])

    def counts(self) -> npt.NDArray[np.intp]:
        """How many rows each thread has."""
        return np.diff(self._begin) + np.diff(self._last_begin)

    def status_counts(self) -> npt.NDArray[np.intp]:
        """How many rows have each status."""
        return np.bincount(self._rows["status"], minlength=256) + np.bincount(self._last["status"], minlength=256)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Rows by thread, in the order of time; the waits include those that had not ended. Arrays of threads are by index.

    on_cpu_ns, blocked_ns, runqueue_ns are the kernel side's own totals up to end_ns, not sums over the rows, so a lost
    row shows as a difference. runqueue_ns includes stolen time: runnable, but the hypervisor ran something else.
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


def collect_intervals(recording: Recording) -> Intervals:
    """Works for a recording without an end too: it then ends with the last thing that was seen."""
    samples, waits = recording.samples, recording.waits
    start_ns = int(recording.start.get("start_ns", 0))
    times = [rows["time_ns"].max() for rows in (samples, waits, recording.totals) if len(rows)]
    end_ns = int(recording.end.get("end_ns") or max([start_ns, *map(int, times)]))
    totals = _last_totals(recording, end_ns)
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
    first_ns = totals["first_ns"].astype(np.int64)
    # What no wait in the file speaks for was stolen from the burst before the wait that had not ended, or before death.
    told = np.bincount(waits["thread"], weights=waits["stolen_ns"], minlength=len(totals)).astype(np.int64)
    untold_stolen_ns = np.maximum(0, totals["stolen_ns"].astype(np.int64) - told)
    unended = _unended_waits(totals, untold_stolen_ns, sleeping_ns, waiting_ns, end_ns)
    thread_count = len(recording.threads)
    return Intervals(
        start_ns,
        end_ns,
        RowsByThread(samples, samples[:0], thread_count),
        RowsByThread(waits, unended, thread_count),
        first_ns,
        np.where(state == _DEAD, totals["since_ns"].astype(np.int64), end_ns),
        totals["on_cpu_ns"].astype(np.int64) + running_ns,
        totals["blocked_ns"].astype(np.int64) + sleeping_ns,
        (totals["runqueue_ns"] + totals["stolen_ns"]).astype(np.int64) + waiting_ns + open_stolen_ns,
        np.where(state == _DEAD, untold_stolen_ns, open_stolen_ns),
    )


def _last_totals(recording: Recording, end_ns: int) -> npt.NDArray[np.void]:
    """One row of TOTAL_DTYPE a thread: the last in the file, brought up to date where later waits are in the file."""
    rows = np.zeros(len(recording.threads), TOTAL_DTYPE)
    rows["first_ns"] = [thread.first_ns for thread in recording.threads]
    rows["since_ns"], rows["time_ns"], rows["syscall"] = rows["first_ns"], rows["first_ns"], -1
    totals = recording.totals[np.argsort(recording.totals["time_ns"], kind="stable")]
    first_ns = rows["first_ns"].copy()
    rows[totals["thread"]] = totals  # the last of equal indices wins
    rows["thread"], rows["first_ns"] = np.arange(len(rows)), first_ns
    if not recording.end:
        _follow_waits(rows, recording.waits)
    return rows


def _follow_waits(rows: npt.NDArray[np.void], waits: npt.NDArray[np.void]) -> None:
    """Adds waits that ended after a thread's totals were taken; after each it was on a CPU.

    Those are the waits after since_ns: time_ns is read a moment before the totals and may miss one that is in them.
    """
    later = waits[(waits["time_ns"] > rows["since_ns"][waits["thread"]]) & (rows["state"][waits["thread"]] != _DEAD)]
    later = later[np.argsort(later["time_ns"], kind="stable")]
    for name in ("blocked_ns", "runqueue_ns", "stolen_ns"):
        np.add.at(rows[name], later["thread"], later[name])
    rows["on_cpu_ns"][later["thread"]] = later["on_cpu_ns"]
    rows["since_ns"][later["thread"]] = later["time_ns"]
    rows["state"][later["thread"]] = _ON_CPU


def _unended_waits(
    totals: npt.NDArray[np.void],
    stolen_ns: npt.NDArray[np.int64],
    sleeping_ns: npt.NDArray[np.int64],
    waiting_ns: npt.NDArray[np.int64],
    end_ns: int,
) -> npt.NDArray[np.void]:
    rows = np.zeros(len(totals), WAIT_DTYPE)
    for name in ("thread", "stack", "status", "syscall", "task_state", "args", "fd_kind", "on_cpu_ns"):
        rows[name] = totals[name]
    rows["time_ns"], rows["blocked_ns"], rows["runqueue_ns"] = end_ns, sleeping_ns, waiting_ns
    rows["stolen_ns"] = stolen_ns
    return rows[(sleeping_ns > 0) | (waiting_ns > 0)]
