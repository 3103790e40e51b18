"""The timeline of a thread: its intervals one after the other, and empty stacks where nothing is shown."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bpfprof.model.profile import TIMELINE_DTYPE, ThreadTime


def without_gaps(rows: npt.NDArray[np.void], thread: ThreadTime, number: int, empty: int) -> npt.NDArray[np.void]:
    """Rows of TIMELINE_DTYPE from the thread's first to its last moment; `empty`: stack of what lies between `rows`.

    `rows` are those of the thread with this number, by start_ns; where two overlap the first one counts.
    """
    begin = np.clip(rows["start_ns"].astype(np.int64), thread.first_ns, thread.last_ns)
    end = np.minimum(begin + rows["duration_ns"].astype(np.int64), thread.last_ns)
    free = np.maximum.accumulate(np.append(thread.first_ns, end))  # before each row, and after the last
    begin = np.maximum(begin, free[:-1])
    made = np.zeros(2 * len(rows) + 1, TIMELINE_DTYPE)
    gaps, filled = made[::2], made[1::2]
    filled[:], gaps["stack"] = rows, empty
    gaps["start_ns"], gaps["duration_ns"] = free, np.append(begin, thread.last_ns) - free
    filled["start_ns"], filled["duration_ns"] = begin, (end - begin).clip(0)
    made["thread"] = number
    return made[made["duration_ns"] > 0]
