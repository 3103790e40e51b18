"""The times of waits, put right by the scheduler's own.

The scheduler counts a thread as running from the wake-up on where it saves reading its clock again, and an idle CPU
takes some microseconds to get from there to the switch. And a thread that was made runnable is not on a run queue yet:
to that of an idle CPU it takes some microseconds too. The kernel side finds out when the thread leaves the CPU again,
so it is told by the row after (or by the thread's totals) and belongs to the row before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Fields of a row that speak of the row before.
TOLD_LATER = ("early_ns", "enqueue_ns")


def settle_times(waits: npt.NDArray[np.void], totals: npt.NDArray[np.void]) -> None:
    """Applies each early_ns and enqueue_ns to the row it belongs to.

    waits: rows of WAIT_DTYPE, changed in place; totals: a row of TOTAL_DTYPE a thread, which have it applied already.
    """
    if not any(rows[name].any() for rows in (waits, totals) for name in TOLD_LATER):
        return
    order = np.lexsort((waits["time_ns"], waits["thread"]))
    threads = waits["thread"][order]
    is_last = np.append(threads[1:] != threads[:-1], True)[: len(threads)]

    def told_later(name: str) -> npt.NDArray[np.uint64]:
        told: npt.NDArray[np.uint64] = np.append(waits[name][order][1:], 0)[: len(threads)].astype(np.uint64)
        told[is_last] = totals[name][threads[is_last]]
        np.minimum(told, waits["runqueue_ns"][order], out=told)
        return told

    early_ns = told_later("early_ns")
    waits["time_ns"][order] -= early_ns
    waits["runqueue_ns"][order] -= early_ns
    enqueue_ns = told_later("enqueue_ns")
    waits["runqueue_ns"][order] -= enqueue_ns
    waits["blocked_ns"][order] += enqueue_ns
    for name in TOLD_LATER:  # done: the recording may be looked at again
        waits[name] = totals[name] = 0
