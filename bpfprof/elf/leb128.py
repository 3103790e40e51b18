"""LEB128 numbers (DWARF 5, section 7.6), and the arrays that the readers of ELF files share."""

from __future__ import annotations

import numpy as np

from bpfprof.array_types import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


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
