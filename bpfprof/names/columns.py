"""Lines of `HEX FIELD REST` (perf-PID.map, /proc/kallsyms) as numpy columns, without a Python loop over lines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bpfprof import array_types as npt

Positions = npt.NDArray[np.int64]
_FIELDS = "start first_end second second_end rest end"  # positions
LINE_DTYPE = np.dtype([(name, "<i8") for name in _FIELDS.split()])
_CHUNK_BYTES = 1 << 20
_HEX_DIGITS = 16
_NOT_HEX = 255
_DIGIT_VALUES = np.full(256, _NOT_HEX, np.uint8)
_DIGIT_VALUES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_DIGIT_VALUES[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


def line_columns(data: bytes) -> Iterator[npt.NDArray[np.void]]:
    """LINE_DTYPE, in pieces: where the fields of each non-empty line are in `data`.

    In a line with fewer than three fields `rest` is `end`, and missing fields are empty.
    """
    position = 0
    while position < len(data):
        cut = data.rfind(b"\n", position, position + _CHUNK_BYTES) + 1
        if not cut:  # a line longer than a piece
            cut = data.find(b"\n", position) + 1
        cut = cut or len(data)
        yield _columns(np.frombuffer(data, np.uint8, cut - position, position), position)
        position = cut


def _columns(text: npt.NDArray[np.uint8], base: int) -> npt.NDArray[np.void]:
    breaks = np.flatnonzero(text == 0x0A)
    ends = breaks if len(breaks) and breaks[-1] == len(text) - 1 else np.append(breaks, len(text))
    starts = np.append(0, ends[:-1] + 1)
    starts, ends = starts[starts < ends], ends[starts < ends]
    spaces = np.append(np.flatnonzero(text == 0x20), len(text))
    first = np.searchsorted(spaces, starts)
    last = len(spaces) - 1
    lines = np.empty(len(starts), LINE_DTYPE)
    lines["start"] = starts
    lines["first_end"] = np.minimum(spaces[first], ends)
    lines["second"] = np.minimum(lines["first_end"] + 1, ends)
    lines["second_end"] = np.maximum(np.minimum(spaces[np.minimum(first + 1, last)], ends), lines["second"])
    lines["rest"] = np.minimum(lines["second_end"] + 1, ends)
    lines["end"] = ends
    for name in LINE_DTYPE.names or ():
        lines[name] += base
    return lines


def hex_values(data: bytes, starts: Positions, ends: Positions) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """(values, whether each is 1 to 16 hexadecimal digits); a leading 0x is allowed."""
    text = np.frombuffer(data, np.uint8)
    if not len(text):
        return np.zeros(len(starts), np.uint64), np.zeros(len(starts), np.bool_)
    last = len(text) - 1
    has_prefix = (ends - starts > 2) & (text[np.minimum(starts, last)] == 0x30)
    has_prefix &= text[np.minimum(starts + 1, last)] | 0x20 == 0x78
    starts = starts + 2 * has_prefix
    lengths = ends - starts
    places = ends[:, None] + np.arange(-_HEX_DIGITS, 0)
    digits = _DIGIT_VALUES[text[places.clip(0, last)]]
    digits[places < starts[:, None]] = 0
    is_valid = (lengths > 0) & (lengths <= _HEX_DIGITS) & (digits != _NOT_HEX).all(axis=1)
    return (digits[:, ::2] << 4 | digits[:, 1::2]).view(">u8").ravel().astype(np.uint64), is_valid
