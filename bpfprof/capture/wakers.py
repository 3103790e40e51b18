"""Who ended waits and who held the GIL: thread ids of the kernel side to the recording's own tables."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.capture.numbers import by_distinct
from bpfprof.capture.processes import Processes
from bpfprof.model.ids import Pid, Tid
from bpfprof.proc import tasks
from bpfprof.recording.tables import RecordedWaker, table_row
from bpfprof.recording.writer import Sink

_TID_BITS = 32
_REMEMBERED_S = 1.0  # an id can be given again
_INNER_LIMIT = 4096  # processes; of one that is gone the last events come within tenths of a second
_NAMED_LIMIT = 20_000  # wakers that are no targets: a host makes new ones for as long as it is watched


class Wakers:
    """Numbers the threads that end waits; `write_new()` writes those the recording does not have yet."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._place_of: dict[int, int] = {}  # tgid << 32 | tid, and which thread of that id it is -> place
        self._count = 0
        self._rows: list[dict[str, Any]] = []
        self._inner: dict[Pid, tuple[float, dict[int, int] | None]] = {}  # see _inner_tids()

    def places(self, events: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
        """Place of each wait's waker in the table, from 1 on; 0 where no thread ended it."""
        chosen = events["waker_kind"] == abi.ENUMS["bp_waker_kind"]["BP_WAKER_THREAD"]
        places = np.zeros(len(events), np.uint32)
        places[chosen] = by_distinct(_keys(events["waker_tgid"][chosen], events["waker_tid"][chosen]), self._place)
        return places

    def holders(self, events: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
        """Thread index + 1 of the GIL's holder (fields tgid, holder); 0 where none was seen."""
        chosen = events["holder"] != 0
        holders = np.zeros(len(events), np.uint32)
        holders[chosen] = by_distinct(_keys(events["tgid"][chosen], events["holder"][chosen]), self._holder)
        return holders

    def write_new(self, sink: Sink) -> None:
        """Rows that the recording does not have yet."""
        if self._rows:
            sink.write("wakers", {"rows": self._rows})
            self._rows = []

    def _place(self, key: int) -> int:
        pid, tid = Pid(key >> _TID_BITS), Tid(key & 0xFFFFFFFF)
        thread = self._processes.threads.index_of.get(tid, -1) + 1
        place = self._place_of.get(key << _TID_BITS | thread)
        if place is None:
            if len(self._place_of) >= _NAMED_LIMIT:
                self._place_of.clear()
            self._count += 1
            place = self._place_of[key << _TID_BITS | thread] = self._count
            self._rows.append(self._row(pid, tid, thread))
        return place

    def _row(self, pid: Pid, tid: Tid, thread: int) -> dict[str, Any]:
        process = self._processes.by_pid.get(pid)
        process_name = process.name if process else tasks.process_name(pid) or ""
        row = RecordedWaker(thread, pid, tid, process_name, tasks.thread_name(pid, tid) or "")
        return table_row(self._count - 1, row)

    def _holder(self, key: int) -> int:
        tid = self._outer_tid(Pid(key >> _TID_BITS), key & 0xFFFFFFFF)
        return self._processes.threads.index_of.get(tid, -1) + 1

    def _outer_tid(self, pid: Pid, inner: int) -> int:
        """Our id of a thread from the one it has in its own pid namespace; 0 when it is gone."""
        since, known = self._inner.get(pid, (-_REMEMBERED_S, {}))
        if time.monotonic() - since >= _REMEMBERED_S:
            known = _inner_tids(pid, known)
            if len(self._inner) >= _INNER_LIMIT:
                self._inner.clear()
            self._inner[pid] = time.monotonic(), known
        return inner if known is None else known.get(inner, 0)


def _keys(pids: npt.NDArray[np.uint32], tids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    return pids.astype(np.uint64) << np.uint64(_TID_BITS) | tids


def _inner_tids(pid: Pid, known: dict[int, int] | None) -> dict[int, int] | None:
    """Our ids of a process's threads by those in its own pid namespace; None when they are the same.

    `known` is what it gave before: it stays true of a process that is gone, whose last events are still to come.
    """
    own = tasks.namespace_tids(pid, Tid(pid))
    if not own:
        return known
    if len(own) == 1:
        return None
    found = {tid: tasks.namespace_tids(pid, tid) for tid in tasks.list_threads(pid)}
    return {ids[-1]: int(tid) for tid, ids in found.items() if ids}
