"""Rows of a recording by thread and time: an order of the reader's arrays, which are not copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
_BLOCK_ROWS = 1 << 16


class RowsByThread:
    """Rows of a recording, a thread at a time; `last` are rows that come after a thread's others (one each at most).

    A row's place counts from 0 in the order of (thread, time), those of `last` included; `begin` has the place of the
    first row of each thread, and one more for the end.
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
        return slice(int(self.begin[thread]), int(self.begin[thread + 1]))

    def blocks(self, thread: int) -> Iterator[slice]:
        """The same, a bounded number at a time."""
        own = self.of_thread(thread)
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
