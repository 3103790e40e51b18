"""Line tables of code objects: the bytes CPython keeps in, the line of every bytecode offset out.

Three formats: 3.11+ locations (Objects/locations.md, v3.11.0), 3.10 linetable and, before it, lnotab
(Objects/lnotab_notes.txt, v3.10.0 and v3.9.0). Tables come from a running process and may be damaged: then they end
early. Offsets are in bytes from the first instruction; 3.10's f_lasti and the 3.11+ code units have to be doubled.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass

Numbers = npt.NDArray[np.signedinteger[Any]]

_CODE_UNIT_BYTES = 2
# Location codes: enum _PyCodeLocationInfoKind, Include/cpython/code.h (v3.11.0). 0 to 9 stay on the line before them.
_SHORT_9, _ONE_LINE_0, _ONE_LINE_2, _LONG, _NO_LOCATION = 9, 10, 12, 14, 15
_VARINT_BYTES = 6
_LARGE_BYTES = 4096  # of a function of some thousand instructions
_NO_LINE_DELTA = -128  # 3.10: this range has no line
_LINE_LIMIT = 1 << 31  # lines are C ints
_NOT_STARTED = -_CODE_UNIT_BYTES  # 3.11 and 3.12 point one unit before the first instruction; 3.9 has -1


@dataclass(frozen=True)
class LineTable:
    """`starts` ascend; entry i covers the offsets from starts[i] to before starts[i+1] and is on entry_lines[i].

    Line 0 means that CPython gives these instructions no line.
    """

    first_line: int
    starts: Numbers
    entry_lines: Numbers

    @staticmethod
    def decode(version: tuple[int, int], linetable: bytes, first_line: int) -> LineTable:
        """Never raises: what follows damage has no line."""
        if version >= (3, 11):
            decode = _decode_locations if len(linetable) < _LARGE_BYTES else _decode_large_locations
            starts, lines = decode(linetable, first_line)
        elif version >= (3, 10):
            starts, lines = _decode_linetable(linetable, first_line)
        else:
            starts, lines = _decode_lnotab(linetable, first_line)
        return LineTable(first_line, starts, np.where((lines > 0) & (lines < _LINE_LIMIT), lines, 0))

    def line(self, offset: int) -> int:
        """The line of an offset, 0 where there is none; the first line where a frame has not started (-1, -2)."""
        if _NOT_STARTED <= offset < 0:
            return self.first_line
        index = int(np.searchsorted(self.starts, offset, side="right")) - 1
        return int(self.entry_lines[index]) if index >= 0 else 0

    def nearest_line(self, offset: int) -> int:
        """The line to show: that of the offset, else of the last entry before it with a line, else the first line."""
        line = self.line(offset)
        if line:
            return line
        index = int(np.searchsorted(self.starts, offset, side="right"))
        before = np.flatnonzero(self.entry_lines[:index])
        return int(self.entry_lines[before[-1]]) if len(before) else self.first_line


def _decode_locations(table: bytes, first_line: int) -> tuple[Numbers, Numbers]:
    """3.11+. Bit 7 marks the first byte of an entry: code in bits 3 to 6, code units less 1 in bits 0 to 2."""
    starts, lines = array("i"), array("i")  # lists would take twenty times as much as the table
    offset, line, position = 0, first_line, 0
    while position < len(table):
        head = table[position]
        position += 1
        if head < 0x80:  # the rest of an entry of which only the line is of use
            continue
        code = head >> 3 & 15
        if code <= _SHORT_9:
            position += 1  # columns
        elif code <= _ONE_LINE_2:
            line += code - _ONE_LINE_0
            position += 2
        elif code <= _LONG:
            delta, position = _signed_varint(table, position)
            if delta is None:
                break
            line += delta
        starts.append(offset)
        # An entry without location reports no line, but the next delta still counts from the line before it.
        lines.append(line if code != _NO_LOCATION and 0 < line < _LINE_LIMIT else 0)
        offset += ((head & 7) + 1) * _CODE_UNIT_BYTES
    starts.append(offset)
    lines.append(0)  # what follows the last entry has no line
    return np.frombuffer(starts, np.int32), np.frombuffer(lines, np.int32)


def _signed_varint(table: bytes, position: int) -> tuple[int | None, int]:
    """Value, None when damaged, and the position after it. 6 bits a byte, low first, bit 6 set when more follow.

    The lowest bit is the sign. A byte with bit 7 belongs to the next entry.
    """
    value = 0
    for shift in range(0, 36, 6):  # 36 bits hold any C int and its sign
        if position >= len(table) or table[position] & 0x80:
            break
        byte = table[position]
        position += 1
        value |= (byte & 0x3F) << shift
        if not byte & 0x40:
            return (-(value >> 1) if value & 1 else value >> 1), position
    return None, position


def _decode_large_locations(table: bytes, first_line: int) -> tuple[Numbers, Numbers]:
    """The same at once: a tenth of the time for a large table, five times as long for one of a usual function."""
    data = np.frombuffer(table, np.uint8)
    heads = np.flatnonzero(data & 0x80)
    codes = data[heads] >> 3 & 15
    deltas = np.where((codes > _SHORT_9) & (codes <= _ONE_LINE_2), codes.astype(np.int64) - _ONE_LINE_0, 0)
    is_long = (codes > _ONE_LINE_2) & (codes <= _LONG)
    deltas[is_long], is_whole = _signed_varints(data, heads[is_long] + 1)
    if not is_whole.all():  # the rest has no line
        end = int(np.flatnonzero(is_long)[is_whole.argmin()])
        heads, codes, deltas = heads[:end], codes[:end], deltas[:end]
    starts = np.zeros(len(heads) + 1, np.int32)
    np.cumsum(((data[heads] & 7) + 1) * _CODE_UNIT_BYTES, out=starts[1:])
    lines = np.zeros(len(heads) + 1, np.int32)  # what follows the last entry has none
    line = first_line + np.cumsum(deltas)
    # An entry without location reports no line, but the next delta still counts from the line before it.
    has_line = (codes != _NO_LOCATION) & (line > 0) & (line < _LINE_LIMIT)
    lines[:-1] = np.where(has_line, line, 0)
    return starts, lines


def _signed_varints(
    data: npt.NDArray[np.uint8], positions: npt.NDArray[np.signedinteger[Any]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The values at these positions, and which are whole: as _signed_varint() has it."""
    values, goes_on = np.zeros(len(positions), np.int64), np.ones(len(positions), np.bool_)
    is_whole = ~goes_on
    data = np.append(data, np.full(_VARINT_BYTES, 0x80, np.uint8))
    for place in range(_VARINT_BYTES):  # 36 bits hold any C int and its sign
        byte = data[positions + place].astype(np.int64)
        goes_on &= byte < 0x80
        values[goes_on] |= (byte[goes_on] & 0x3F) << 6 * place
        is_whole |= goes_on & (byte & 0x40 == 0)
        goes_on &= ~is_whole
    return np.where(values & 1, -(values >> 1), values >> 1), is_whole


def _decode_linetable(table: bytes, first_line: int) -> tuple[Numbers, Numbers]:
    """3.10: pairs of (length in bytes, signed line delta); advance(), Objects/codeobject.c (v3.10.0)."""
    pairs = np.frombuffer(table, np.uint8, len(table) & ~1).reshape(-1, 2)
    deltas = pairs[:, 1].astype(np.int8).astype(np.int64)
    lines = first_line + np.cumsum(np.where(deltas == _NO_LINE_DELTA, 0, deltas))
    starts = np.zeros(len(pairs) + 1, np.int64)
    np.cumsum(pairs[:, 0], dtype=np.int64, out=starts[1:])
    return starts, np.append(np.where(deltas == _NO_LINE_DELTA, 0, lines), 0)


def _decode_lnotab(table: bytes, first_line: int) -> tuple[Numbers, Numbers]:
    """3.6 to 3.9: pairs of (offset delta, signed line delta); PyCode_Addr2Line(), Objects/codeobject.c (v3.9.0)."""
    pairs = np.frombuffer(table, np.uint8, len(table) & ~1).reshape(-1, 2)
    starts = np.zeros(len(pairs) + 1, np.int64)
    np.cumsum(pairs[:, 0], dtype=np.int64, out=starts[1:])
    lines = np.full(len(pairs) + 1, first_line, np.int64)
    lines[1:] += np.cumsum(pairs[:, 1].astype(np.int8), dtype=np.int64)
    return starts, lines
