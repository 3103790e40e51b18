"""LEB128 numbers (DWARF 5, section 7.6), one at a time or many at once.

Numbers of more than 8 bytes are none that a compiler writes: many at once, they read as HUGE.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

HUGE = 1 << 56
_LONGEST_BYTES = 8


def read_uleb(data: bytes, at: int) -> tuple[int, int]:
    """(value, position after it). Raises IndexError where the data ends first, ValueError above 10 bytes."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
        if shift >= 70:
            raise ValueError("a LEB128 number of more than 10 bytes")


def read_sleb(data: bytes, at: int) -> tuple[int, int]:
    """As read_uleb, for signed numbers."""
    value, end = read_uleb(data, at)
    bits = 7 * (end - at)
    return (value - (1 << bits) if value >> (bits - 1) else value), end


def leb_ends(data: Bytes) -> NDArray[np.int32]:
    """For every position, where a number that begins there ends; the data must end with a byte below 0x80."""
    ends = np.arange(1, len(data) + 1, dtype=np.int32)
    ends[data >= 0x80] = len(data)
    return np.minimum.accumulate(ends[::-1])[::-1]


def uleb_values(data: Bytes, at: Ints, end: Ints) -> Ints:
    """The numbers at `at`, which end at `end`."""
    values = (data[at] & 0x7F).astype(np.int64)
    more = np.flatnonzero(end - at > 1)
    for index in range(1, _LONGEST_BYTES):
        if not len(more):
            return values
        values[more] |= (data[at[more] + index] & 0x7F).astype(np.int64) << (7 * index)
        more = more[end[more] - at[more] > index + 1]
    values[more] = HUGE
    return values


def sleb_values(data: Bytes, at: Ints, end: Ints) -> Ints:
    """As uleb_values, for signed numbers."""
    values = uleb_values(data, at, end)
    bits = 7 * np.minimum(end - at, _LONGEST_BYTES)
    negative = (values >> (bits - 1)) & 1 == 1
    return np.where(negative & (values < HUGE), values - (np.int64(1) << bits), values)
