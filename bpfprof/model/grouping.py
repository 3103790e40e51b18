"""Rows that are alike in some columns, by numbers, and their sums: the one group-by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass

Int64Array = npt.NDArray[np.int64]
Whole = TypeVar("Whole", np.int64, np.uint64)

_FACTOR, _SHIFT = np.uint64(0xBF58476D1CE4E5B9), np.uint64(31)
_DIGIT = 16  # bits of numbers that numpy orders by their digits
_FEW = 1 << 12  # of fewer numbers the order costs little in any way
_FEW_ROWS = 48  # a numpy call takes as long as Python does for so many
_LARGE = 1 << 20  # of larger values the order is taken, not the values
_MOST = np.iinfo(np.int64).max


def group_numbers(columns: Iterable[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """(place of the first row of each group, number of each row's group); columns of whole numbers, none below 0.

    Groups are in the order of the columns, of which the first counts most.
    """
    keys, limit = _keys(columns)
    order = order_of(keys, limit)
    keys = keys[order]
    is_first = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
    number = np.empty(len(keys), np.intp)
    number[order] = np.cumsum(is_first) - 1
    return order[is_first], number


def grouped(columns: Iterable[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """(rows, those of a group one after the other in any order; where in them each group begins); columns as above.

    Which order it is depends on the CPU: numpy sorts with what instructions there are.
    """
    keys = _hashes(columns)
    order = np.argsort(keys)
    keys = keys[order]
    return order, np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])


def first_of(order: npt.NDArray[np.intp], begin: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """The first row of each group, from what grouped() gave."""
    return np.minimum.reduceat(order, begin) if len(begin) else order[:0]


def numbers_of(order: npt.NDArray[np.intp], begin: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """For each row the number of its group, from what grouped() gave."""
    numbers = np.empty(len(order), np.intp)
    numbers[order] = np.repeat(np.arange(len(begin)), np.diff(np.append(begin, len(order))))
    return numbers


def _keys(columns: Iterable[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.int64], int]:
    """(a number of each row, the same for those that are alike in all columns; what these are below)"""
    columns = [*columns]
    limits = _limits(columns)
    if math.prod(limit for _, limit in limits) <= _MOST:
        return _combined(columns, limits)
    keys: npt.NDArray[np.int64] | None = None
    most = 0
    for column in columns:
        values = column
        if len(values) and int(values.max()) >= _LARGE:
            values = np.unique(values, return_inverse=True)[1]
        values, count = values.astype(np.int64), int(values.max(initial=0)) + 1
        if keys is not None and most > _MOST // count - 1:
            keys = np.unique(keys, return_inverse=True)[1].astype(np.int64)
            most = int(keys.max(initial=0)) + 1
        keys = values if keys is None else keys * count + values
        most = (most + 1) * count
    assert keys is not None
    return keys, most


def _limits(columns: Sequence[npt.NDArray[Any]]) -> list[tuple[int, int]]:
    """For each its least value, and how many numbers there are from that to its largest one."""
    limits = [(int(column.min()), int(column.max())) if len(column) else (0, 0) for column in columns]
    return [(least, most - least + 1) for least, most in limits]


def _combined(
    columns: Sequence[npt.NDArray[Any]], limits: Sequence[tuple[int, int]]
) -> tuple[npt.NDArray[np.int64], int]:
    """As _keys() says, in the order of the columns, where numbers are large enough."""
    keys, below = np.zeros(len(columns[0]), np.int64), 1
    for column, (least, limit) in zip(columns, limits):
        values = column if column.dtype == np.uint64 else column.astype(np.int64)
        keys *= limit
        keys += (values - least).astype(np.int64)
        below *= limit
    return keys, below


def _hashes(columns: Iterable[npt.NDArray[Any]]) -> npt.NDArray[np.uint64]:
    """The same where their order says nothing: hashes of 64 bits, which is also what the kernel side knows stacks by.

    Two of a million different rows are taken for one with a probability of 3e-8. Mixed as in splitmix64 (Steele, Lea
    and Flood, OOPSLA 2014).
    """
    keys: npt.NDArray[np.uint64] | None = None
    for column in columns:
        values = column.astype(np.uint64)
        keys = values if keys is None else np.bitwise_xor(keys, values, out=keys)
        keys *= _FACTOR
        keys ^= keys >> _SHIFT
    assert keys is not None
    return keys


def order_of(values: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.intp]:
    """`np.argsort(values, kind="stable")` of numbers from 0 to below `limit`, faster where they are many.

    numpy orders numbers of 16 bits by their digits (numpy/_core/src/npysort/radixsort.cpp), and wider ones by comparing
    them.
    """
    if len(values) < _FEW:
        return np.argsort(values, kind="stable")
    order = np.argsort(values.astype(np.uint16), kind="stable")
    for shift in range(_DIGIT, (limit - 1).bit_length(), _DIGIT):
        order = order[np.argsort((values >> shift).astype(np.uint16)[order], kind="stable")]
    return order


def each_once(values: npt.NDArray[Whole]) -> npt.NDArray[Whole]:
    """`np.unique()` of some ascending rows of numbers one after the other, which numpy 2.3 and later hashes."""
    ordered = np.sort(values, kind="stable")
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]])


def ordered(columns: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """(`np.lexsort(columns[::-1])`, in which the first column counts most; where in it each group of rows begins)."""
    limits = _limits(columns)
    if math.prod(limit for _, limit in limits) > _MOST:
        order = np.lexsort(columns[::-1])
        changed = np.any([np.diff(column[order].astype(np.int64)) != 0 for column in columns], axis=0)
    else:
        keys, below = _combined(columns, limits)
        order = order_of(keys, below)
        changed = np.diff(keys[order]) != 0
    return order, np.flatnonzero(np.append(True, changed)[: len(order)])


def sums_by(index: npt.NDArray[Any], values: npt.NDArray[Any], count: int) -> Int64Array:
    """Sum of the values for each index below `count`; exact below 2**53 (in nanoseconds 104 days)."""
    return np.bincount(index, weights=values, minlength=count).clip(0, float(1 << 62)).astype(np.int64)


@dataclass(frozen=True)
class Total:
    """How much time something took in one function: `frame`, a place in Profile.frames, -1: not known, or in all."""

    value: int
    ns: int
    frame: int = -1


def totals_of(values: npt.NDArray[np.generic], ns: Int64Array, frames: Int64Array | None = None) -> tuple[Total, ...]:
    """Sum of ns for each value, most first; with `frames` for each pair of both."""
    if len(values) <= _FEW_ROWS:
        return _totals_of_few(
            values.astype(np.int64).tolist(), ns.tolist(), [-1] * len(values) if frames is None else frames.tolist()
        )
    keys = values.astype(np.int64) << 32 | ((0 if frames is None else frames + 1) & 0xFFFFFFFF)
    unique, codes = np.unique(keys, return_inverse=True)
    sums = sums_by(codes, ns, len(unique))
    order = np.lexsort((unique, -sums))
    parts = zip((unique >> 32)[order].tolist(), sums[order].tolist(), (unique & 0xFFFFFFFF)[order].tolist())
    return tuple(Total(value, ns, frame - 1) for value, ns, frame in parts)


def _totals_of_few(values: Sequence[int], ns: Sequence[int], frames: Sequence[int]) -> tuple[Total, ...]:
    """The same without arrays, which cost more than the sums of some rows."""
    sums: dict[tuple[int, int], int] = {}
    for value, one_ns, frame in zip(values, ns, frames):
        sums[value, frame] = sums.get((value, frame), 0) + one_ns
    order = sorted((-total_ns, value, frame) for (value, frame), total_ns in sums.items())
    return tuple(Total(value, -total_ns, frame) for total_ns, value, frame in order)
