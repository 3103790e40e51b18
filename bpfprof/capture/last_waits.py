"""The last wait of each thread, held back until its times are final: rows as they come in, rows for the recording out.

The scheduler counts a thread as running from the wake-up on where it saves reading its clock again, and an idle CPU
takes some microseconds to get from there to the switch (`early_ns`). And a thread that was made runnable is not on a
run queue yet: to that of an idle CPU it takes some microseconds too (`enqueue_ns`). The kernel side knows both when the
thread leaves the CPU again, and tells with its next wait, its end or its totals.
"""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.capture.numbers import look_up
from bpfprof.model.rows import one_after_another, picked
from bpfprof.model.samples import WAIT_DTYPE


class LastWaits:
    """Rows of WAIT_DTYPE; those of one thread come out in the order of time."""

    def __init__(self) -> None:
        self._held = np.zeros(0, WAIT_DTYPE)  # one a thread at most

    def follow(
        self,
        waits: npt.NDArray[np.void],
        told: npt.NDArray[np.void],
        ended: npt.NDArray[np.integer],
        told_at_end: npt.NDArray[np.void],
    ) -> npt.NDArray[np.void]:
        """Takes waits in the order of time and the threads that ended; returns what is final.

        told, told_at_end: what the event of each tells of its thread's wait before (early_ns and enqueue_ns). A thread
        may go on after its end: another one of its process, which called execve.
        """
        rows = one_after_another(self._held.dtype, [self._held, waits])
        thread = np.concatenate([rows["thread"], ended])
        order = np.lexsort((np.concatenate([rows["time_ns"], told_at_end["time_ns"]]), thread))
        is_next = (thread[order[1:]] == thread[order[:-1]]) & (order[:-1] < len(rows))
        before, after = order[:-1][is_next], order[1:][is_next] - len(self._held)
        is_final = np.zeros(len(rows), np.bool_)
        is_final[before] = True
        for name in ("early_ns", "enqueue_ns"):
            values = np.concatenate([told[name], told_at_end[name]])[after]
            _correct(rows, before, name, values)
        self._held = picked(rows, ~is_final)
        return picked(rows, is_final)

    def settle(self, threads: npt.NDArray[np.integer], records: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """Returns what is final by records of threads (abi.THREAD_DTYPE), read before the events that came last."""
        place = look_up(self._held["thread"], dict(zip(threads.tolist(), range(len(threads)))), -1)
        is_final = place >= 0
        is_final[is_final] = records["since_ns"][place[is_final]] > self._held["time_ns"][is_final]
        rows, place = picked(self._held, is_final), place[is_final]
        self._held = picked(self._held, ~is_final)
        for name in ("early_ns", "enqueue_ns"):
            _correct(rows, np.arange(len(rows)), name, records[name][place])
        return rows

    def take_rest(self, denied_ns: dict[int, int] | None = None) -> npt.NDArray[np.void]:
        """What is held: nothing more will be told of it. denied_ns: of a thread's run queue, what it was not in."""
        rows, self._held = self._held, self._held[:0]
        denied = np.array([(denied_ns or {}).get(thread, 0) for thread in rows["thread"].tolist()], np.uint64)
        _correct(rows, np.arange(len(rows)), "enqueue_ns", denied)
        return rows


def _correct(
    rows: npt.NDArray[np.void], places: npt.NDArray[np.integer], name: str, ns: npt.NDArray[np.integer]
) -> None:
    """Applies what was told, as far as there is so much."""
    ns = np.minimum(ns, rows["runqueue_ns"][places])
    rows["runqueue_ns"][places] -= ns
    if name == "early_ns":
        rows["time_ns"][places] -= ns
    else:
        rows["blocked_ns"][places] += ns
