"""Rows of a recording -> the same by thread and time: in memory, or in a file without a name where they are many."""

from __future__ import annotations

import itertools
from typing import Protocol

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.rows import MOST_BYTES, blocks, one_after_another, picked, read_at, write_at

Rows = npt.NDArray[np.void]
Int64Array = npt.NDArray[np.int64]
_PART_BYTES = 8 << 20  # of rows that are sorted at a time, but those of one thread


class SortedRows(Protocol):
    """begin: for each thread the place of its first row, and one more for the end."""

    @property
    def begin(self) -> Int64Array: ...

    def read(self, begin: int, end: int) -> Rows:
        """The rows at these places."""
        ...


def sorted_rows(rows: Rows, last: Rows, thread_count: int) -> SortedRows:
    """Rows of one thread and time stay in their order; last: rows that come after all others of their thread."""
    counts = np.bincount(last["thread"], minlength=thread_count)
    for block in blocks(rows):
        counts += np.bincount(block["thread"], minlength=thread_count)
    begin = np.append(0, np.cumsum(counts))
    if rows.nbytes > MOST_BYTES:
        try:
            return _InFile(rows, last, begin)
        except OSError:  # no room there
            pass
    both = one_after_another(rows.dtype, [rows, last]) if len(last) else rows
    return _InMemory(_in_order(both, len(last)), begin)


@dataclass(frozen=True)
class _InMemory:
    _rows: Rows
    begin: Int64Array

    def read(self, begin: int, end: int) -> Rows:
        return self._rows[begin:end]


class _InFile:
    """Threads that follow one another have a part of the file; rows come into their part first, then each is sorted."""

    def __init__(self, rows: Rows, last: Rows, begin: Int64Array) -> None:
        self.begin, self._dtype = begin, rows.dtype
        import tempfile

        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it goes with this object
        parts = begin[:-1] // max(1, _PART_BYTES // rows.itemsize)  # of each thread, by where it begins
        part_of = np.cumsum(np.diff(parts, prepend=parts[:1]) > 0)
        if len(part_of) <= 1 << 16:
            part_of = part_of.astype(np.uint16)  # which numpy sorts by digits
        first = np.flatnonzero(np.diff(part_of.astype(np.int64), prepend=-1))
        borders = np.append(begin[first], begin[-1])
        free = borders[:-1].tolist()
        for block in itertools.chain(blocks(rows), (last,)):
            part = part_of[block["thread"]]
            order = np.argsort(part, kind="stable")
            moved, ends = picked(block, order), np.searchsorted(part[order], np.arange(len(free) + 1)).tolist()
            for number, (start, stop) in enumerate(zip(ends, ends[1:])):
                if start < stop:
                    write_at(self._file.fileno(), free[number], moved[start:stop])
                    free[number] += stop - start
        last_counts = np.bincount(part_of[last["thread"]], minlength=len(free)).tolist()
        for start, stop, last_count in zip(borders.tolist(), borders[1:].tolist(), last_counts):
            write_at(self._file.fileno(), start, _in_order(self.read(start, stop), last_count))

    def read(self, begin: int, end: int) -> Rows:
        return read_at(self._file.fileno(), begin, end - begin, self._dtype)


def _in_order(rows: Rows, last_count: int) -> Rows:
    """The last ones of the rows come after all others of their thread."""
    at_ns = rows["time_ns"].copy()
    at_ns[len(rows) - last_count :] = np.iinfo(at_ns.dtype).max
    return picked(rows, np.lexsort((at_ns, rows["thread"])))
