"""Threads that the scheduler let run before the switch was seen: the times of their waits, put right.

The scheduler counts a thread as running from the wake-up on where it saves reading its clock again, and an idle CPU
takes some microseconds to get from there to the switch. The kernel side finds out when the thread leaves the CPU again,
so it is told by the row after (or by the thread's totals) and belongs to the row before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def end_waits_early(waits: npt.NDArray[np.void], totals: npt.NDArray[np.void]) -> None:
    """Takes each early_ns off the row it belongs to: of WAIT_DTYPE, in place; totals: a row of TOTAL_DTYPE a thread."""
    if not waits["early_ns"].any() and not totals["early_ns"].any():
        return
    order = np.lexsort((waits["time_ns"], waits["thread"]))
    threads = waits["thread"][order]
    is_last = np.append(threads[1:] != threads[:-1], True)[: len(threads)]
    early_ns = np.append(waits["early_ns"][order][1:], np.uint64(0))[: len(threads)]
    early_ns[is_last] = totals["early_ns"][threads[is_last]]
    early_ns = np.minimum(early_ns, waits["runqueue_ns"][order])
    waits["runqueue_ns"][order] -= early_ns
    waits["time_ns"][order] -= early_ns
    waits["early_ns"] = 0  # done: the recording may be looked at again
    totals["early_ns"] = 0
