"""Rows of tables with many columns, moved as bytes.

For `rows[which]`, copies and concatenations numpy goes through the columns of each row one by one (numpy 2.4.6:
_strided_to_strided_field_transfer, numpy/_core/src/multiarray/dtype_transfer.c), which takes a hundred times as long.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np

from bpfprof import array_types as npt

Rows = npt.NDArray[np.void]
MOST_BYTES = 24 << 20  # of rows of one kind that are kept in memory where they can be in a file
BLOCK_BYTES = 8 << 20  # that are in memory at a time
_NEAR_BYTES = 1 << 20  # that a CPU keeps near to it
# A row in memory is at most so many times as wide as in its file, where it may lack columns. Rows that are more than
# _MUCH_WIDER lack so many bytes for that together at most.
_WIDER, _MUCH_WIDER, _MOST_LACKED = 4, 1.5, 4 << 20


def picked(rows: Rows, which: npt.NDArray[Any]) -> Rows:
    """`rows[which]`, which are places, or of each row whether it is picked."""
    return np.asarray(rows.compress(which) if which.dtype == np.bool_ else rows.take(which))


def copied(rows: Rows) -> Rows:
    """`rows.copy()`."""
    return rows.view(_bytes_of(rows.dtype)).copy().view(rows.dtype)


def copied_out(rows: Rows) -> Rows:
    """The same; of rows in a file none is in memory any more."""
    found = copied(rows)
    out_of_memory(rows)
    return found


def one_after_another(dtype: np.dtype[np.void], parts: Iterable[Rows]) -> Rows:
    """`np.concatenate()` of parts of one dtype, of which there may be none."""
    as_bytes = _bytes_of(dtype)
    views = []
    for part in parts:
        if part.dtype != dtype:
            raise ValueError("rows of different tables cannot stand in one")
        views.append(part.view(as_bytes))
    return np.concatenate([np.zeros(0, as_bytes), *views]).view(dtype)


def _bytes_of(dtype: np.dtype[np.void]) -> np.dtype[np.void]:
    return np.dtype((np.void, dtype.itemsize))


class GrowingRows:
    """Rows that are appended to. Those that were handed out stay as they are."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self._rows = np.zeros(0, dtype)
        self._count = 0
        self._lacked = 0.0  # bytes

    def append(self, array: npt.NDArray[Any]) -> None:
        """Takes the fields that this version knows; those the array lacks are 0. Raises ValueError as check() does."""
        self.check(array)
        end = self._count + len(array)
        if end > len(self._rows):
            self._grow(max(end, len(self._rows) * 5 // 4))
        if array.dtype == self._rows.dtype:
            as_bytes = _bytes_of(array.dtype)
            self._rows[self._count : end].view(as_bytes)[:] = array.view(as_bytes)
            self._count = end
            return
        with np.errstate(invalid="ignore"):  # a damaged column of numbers that are none
            for name in set(self._rows.dtype.names or ()) & set(array.dtype.names or ()):
                self._rows[name][self._count : end] = array[name]
        self._count = end

    def check(self, array: npt.NDArray[Any]) -> None:
        """Raises ValueError for rows without the first column, or much narrower ones, or many that are narrower.

        So rows in memory are not many times what they are in the file.
        """
        first = (self._rows.dtype.names or ("",))[0]
        if first not in (array.dtype.names or ()):
            raise ValueError(f"rows without the column {first}")
        width, whole = array.dtype.itemsize, self._rows.dtype.itemsize
        self._lacked += len(array) * max(0.0, whole / _MUCH_WIDER - width)
        if width * _WIDER < whole or self._lacked > _MOST_LACKED:
            raise ValueError("rows without most of their columns")

    def _grow(self, count: int) -> None:
        try:
            self._rows.resize(count)  # in place: a long recording is never in memory twice
        except ValueError:  # somebody has a view of them
            rows = np.zeros(count, self._rows.dtype)
            rows[: self._count] = self._rows[: self._count]
            self._rows = rows

    def view(self) -> npt.NDArray[np.void]:
        """All rows, to be read only."""
        return read_only(self._rows[: self._count])

    def whole(self) -> npt.NDArray[np.void]:
        """The same when no more are to come, for which there is no room kept then."""
        with contextlib.suppress(ValueError):  # somebody has a view of them
            self._rows.resize(self._count)
        return self.view()


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, which cannot be written any more."""
    array.setflags(write=False)
    return array


class FiledRows(GrowingRows):
    """The same, in a file without a name when they are many: blocks() reads them with little of it in memory."""

    def __init__(self, dtype: np.dtype[np.void], most_bytes: int | None = None) -> None:
        """most_bytes: of them in memory; without it MOST_BYTES."""
        super().__init__(dtype)
        self._file: IO[bytes] | None = None
        self._has_room, self._most_bytes = True, MOST_BYTES if most_bytes is None else most_bytes

    def append(self, array: npt.NDArray[Any]) -> None:
        if self._file is None:
            super().append(array)
            if self._has_room and self._count * self._rows.itemsize > self._most_bytes:
                self._move()
            return
        self.check(array)
        rows = array
        if array.dtype != self._rows.dtype or not array.flags.c_contiguous:
            taken = GrowingRows(self._rows.dtype)
            taken.append(array)
            rows = taken.view()
        try:
            write_at(self._file.fileno(), self._count * rows.itemsize, rows)
            self._count += len(array)
        except OSError:  # no room there any more
            self._rows, self._file, self._has_room = self.view().copy(), None, False
            super().append(array)

    def _move(self) -> None:
        try:
            import tempfile

            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it goes with this object
            write_at(self._file.fileno(), 0, self._rows[: self._count])
            self._rows = self._rows[:0].copy()
        except OSError:
            self._file, self._has_room = None, False

    def view(self) -> npt.NDArray[np.void]:
        if self._file is None:
            return super().view()
        size = self._count * self._rows.itemsize
        return np.frombuffer(mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ), self._rows.dtype)


def blocks(rows: npt.NDArray[Any], most_bytes: int = 0) -> Iterator[npt.NDArray[Any]]:
    """The rows, some at a time; of those in a file few are in memory. most_bytes: of some; 0: as are quickest."""
    step = max(1, (most_bytes or _NEAR_BYTES) // rows.itemsize)
    held_bytes = 0
    for at in range(0, len(rows), step):
        yield rows[at : at + step]
        held_bytes += step * rows.itemsize
        if held_bytes >= BLOCK_BYTES or at + step >= len(rows):
            out_of_memory(rows)
            held_bytes = 0


def out_of_memory(rows: npt.NDArray[Any]) -> None:
    """Of rows in a file none is in memory any more, until it is read again; other rows stay where they are."""
    base: Any = rows
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


def write_at(fd: int, at: int, array: npt.NDArray[Any]) -> None:
    """Its bytes from this byte of a file on."""
    left = array.reshape(-1).view(np.uint8).data
    while left:
        count = os.pwrite(fd, left, at)
        left, at = left[count:], at + count


def read_into(fd: int, at: int, array: npt.NDArray[Any]) -> None:
    """As write_at() wrote them. Raises OSError where there are not as many."""
    left = array.reshape(-1).view(np.uint8).data
    while left:
        size = os.preadv(fd, [left], at)
        if not size:
            raise OSError("a file of rows is shorter than it was")
        left, at = left[size:], at + size
