"""Rows of a recording -> the same by thread and time, by columns: in memory, or in a file where they are many."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, Protocol

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.ahead import ahead, side_by_side
from bpfprof.model.rows import BLOCK_BYTES, MOST_BYTES, blocks, one_after_another, picked, read_into, write_at

Rows = npt.NDArray[np.void]
Int64Array = npt.NDArray[np.int64]
_PART_BYTES = 8 << 20  # of rows that are sorted at a time, but those of one thread


class SortedRows(Protocol):
    """begin: for each thread the place of its first row, and one more for the end."""

    @property
    def begin(self) -> Int64Array: ...

    def column(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        """Of the rows at these places; nobody changes it."""
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
    order = _order_of(both["time_ns"].copy(), both["thread"], len(last))
    columns = {name: both[name][order] for name in both.dtype.names or ()}
    for column in columns.values():
        column.setflags(write=False)
    return _InMemory(columns, begin)


@dataclass(frozen=True)
class _InMemory:
    _columns: dict[str, npt.NDArray[Any]]
    begin: Int64Array

    def column(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        return self._columns[name][begin:end]


class _InFile:
    """Threads that follow one another have a part of the file with one column after the other. Rows come into their
    part first, then each is sorted, a column at a time: of a thread there may be very many."""

    def __init__(self, rows: Rows, last: Rows, begin: Int64Array) -> None:
        self.begin, self._dtype = begin, rows.dtype
        import tempfile

        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it goes with this object
        parts = begin[:-1] // max(1, _PART_BYTES // rows.itemsize)  # of each thread, by where it begins
        part_of = np.cumsum(np.diff(parts, prepend=parts[:1]) > 0)
        if len(part_of) <= 1 << 16:
            part_of = part_of.astype(np.uint16)  # which numpy sorts by digits
        first = np.flatnonzero(np.diff(part_of.astype(np.int64), prepend=-1))
        self._borders: list[int] = np.append(begin[first], begin[-1]).tolist()
        free, fd = self._borders[:-1], self._file.fileno()
        all_blocks = itertools.chain(blocks(rows, BLOCK_BYTES), (last,))
        for columns, ends in ahead(map(partial(_by_part, part_of, len(free)), all_blocks)):
            for number, (start, stop) in enumerate(zip(ends, ends[1:])):
                for name, column in columns.items() if start < stop else ():
                    write_at(fd, self._place_of(name, number, free[number]), column[start:stop])
                free[number] += stop - start
        last_counts = np.bincount(part_of[last["thread"]], minlength=len(free)).tolist()
        for _ in side_by_side(self._sort, enumerate(last_counts)):
            pass

    def _place_of(self, name: str, number: int, row: int) -> int:
        """The byte of the file where a part has a row's column."""
        start, stop = self._borders[number : number + 2]
        assert self._dtype.fields is not None
        dtype, offset = self._dtype.fields[name][:2]
        return start * self._dtype.itemsize + offset * (stop - start) + dtype.itemsize * (row - start)

    def _sort(self, part: tuple[int, int]) -> None:
        """part: its number, how many of its rows are the last ones of their thread."""
        number, last_count = part
        start, stop = self._borders[number : number + 2]
        at_ns, thread = self.column("time_ns", start, stop), self.column("thread", start, stop)
        order = _order_of(at_ns, thread, last_count)
        if (order[1:] > order[:-1]).all():
            return
        for name in self._dtype.names or ():
            write_at(self._file.fileno(), self._place_of(name, number, start), self.column(name, start, stop)[order])

    def column(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        dtype = self._dtype[name]
        found = np.empty((end - begin, *dtype.shape), dtype.base)
        for number, (start, stop) in enumerate(zip(self._borders, self._borders[1:])):
            first, last = max(begin, start), min(end, stop)
            if first < last:
                part = found[first - begin : last - begin]
                read_into(self._file.fileno(), self._place_of(name, number, first), part)
        return found


def _by_part(part_of: npt.NDArray[Any], count: int, rows: Rows) -> tuple[dict[str, npt.NDArray[Any]], list[int]]:
    """(columns of rows of one part after the other, where each of so many parts begins in them, and the end)"""
    part = part_of[rows["thread"]]
    order = np.argsort(part, kind="stable")
    moved = picked(rows, order)
    columns = {name: np.ascontiguousarray(moved[name]) for name in rows.dtype.names or ()}
    return columns, np.searchsorted(part[order], np.arange(count + 1)).tolist()


def _order_of(at_ns: npt.NDArray[Any], thread: npt.NDArray[Any], last_count: int) -> npt.NDArray[np.intp]:
    """By thread and time; the last ones of the rows come after all others of their thread. Changes at_ns."""
    at_ns[len(at_ns) - last_count :] = np.iinfo(at_ns.dtype).max
    return np.lexsort((at_ns, thread))
