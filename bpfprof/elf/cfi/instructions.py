"""Call frame instructions: their numbers, their sizes, and which bytes of a section are the first of one.

DWARF 5, section 6.4.2, numbered in section 7.24; the GNU ones are in the LSB 5.0 core specification, section 10.5.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bpfprof.elf.cfi.rules import RBP, RETURN_ADDRESS, RSP
from bpfprof.elf.leb128 import Bytes, Ints, uleb_values

PADDING = bytes(16)  # behind the data, so that an operand cut short is still inside the array
_FEW_LANES = 48  # with fewer, following them one by one is quicker than together
_ROUND_WORK, _SINGLE_WORK = 500, 12

# Opcodes by the first byte; those with an operand in their low bits get a code of their own.
SET_LOC, ADVANCE_1, ADVANCE_2, ADVANCE_4 = 0x01, 0x02, 0x03, 0x04
OFFSET_EXTENDED, RESTORE_EXTENDED, UNDEFINED, SAME_VALUE, REGISTER = 0x05, 0x06, 0x07, 0x08, 0x09
REMEMBER, RESTORE_STATE = 0x0A, 0x0B
DEF_CFA, DEF_CFA_REGISTER, DEF_CFA_OFFSET, DEF_CFA_EXPRESSION = 0x0C, 0x0D, 0x0E, 0x0F
EXPRESSION, OFFSET_EXTENDED_SF, DEF_CFA_SF, DEF_CFA_OFFSET_SF = 0x10, 0x11, 0x12, 0x13
VAL_OFFSET, VAL_OFFSET_SF, VAL_EXPRESSION = 0x14, 0x15, 0x16
GNU_ARGS_SIZE, GNU_NEGATIVE_OFFSET_EXTENDED = 0x2E, 0x2F
ADVANCE, OFFSET, RESTORE = 0x40, 0x41, 0x42  # of the registers that matter
NOTHING, BAD, BEGIN, END = 0x50, 0x51, 0x52, 0x53
_SAVED = (OFFSET_EXTENDED, OFFSET_EXTENDED_SF, GNU_NEGATIVE_OFFSET_EXTENDED, EXPRESSION)
_VALUES = (VAL_OFFSET, VAL_OFFSET_SF, VAL_EXPRESSION, SAME_VALUE, REGISTER, UNDEFINED)
OF_REGISTER = (*_SAVED, *_VALUES, RESTORE_EXTENDED)

# What follows the first byte: nothing or a fixed number of bytes, one or two LEB128, a block, a LEB128 and a block.
_FIXED, _ONE, _TWO, _BLOCK, _ONE_AND_BLOCK = range(5)
_SHAPES = {
    _ONE: (0x06, 0x07, 0x08, 0x0D, 0x0E, 0x13, 0x2E),
    _TWO: (0x05, 0x09, 0x0C, 0x11, 0x12, 0x14, 0x15, 0x2F),
    _BLOCK: (DEF_CFA_EXPRESSION,),
    _ONE_AND_BLOCK: (EXPRESSION, VAL_EXPRESSION),
}


def _tables() -> tuple[Bytes, Bytes, Bytes]:
    """By first byte: code, shape, and size in bytes where it is fixed."""
    codes, shapes, sizes = (np.zeros(256, np.uint8) for _ in range(3))
    sizes[:] = 1
    codes[:0x40] = BAD
    codes[0] = NOTHING
    for shape, opcodes in _SHAPES.items():
        shapes[list(opcodes)] = shape
    for opcode in (*sum(_SHAPES.values(), ()), SET_LOC, REMEMBER, RESTORE_STATE):
        codes[opcode] = opcode
    codes[GNU_ARGS_SIZE] = NOTHING  # only a landing pad needs it
    for opcode, size in ((ADVANCE_1, 2), (ADVANCE_2, 3), (ADVANCE_4, 5)):
        codes[opcode], sizes[opcode] = opcode, size
    codes[0x40:0x80] = ADVANCE
    codes[0x80:] = NOTHING  # offset and restore of registers that do not matter
    shapes[0x80:0xC0] = _ONE
    for register in (RBP, RSP, RETURN_ADDRESS):
        codes[0x80 + register], codes[0xC0 + register] = OFFSET, RESTORE
    return codes, shapes, sizes


CODES, _SHAPE, _SIZE = _tables()
MATTERS = (CODES != NOTHING).astype(np.uint8)  # by first byte


def successors(data: Bytes, ends: NDArray[np.int32]) -> NDArray[np.int32]:
    """Where the next instruction would be if one began at each position (positions in the padding excepted)."""
    last = len(data) - 1
    size = len(data) - len(PADDING)
    body = data[:size]
    following = np.arange(size, dtype=np.int32) + _SIZE[body]
    shape = _SHAPE[body]
    np.copyto(following, ends[1 : size + 1], where=shape == _ONE)
    at = np.flatnonzero(shape == _TWO)
    following[at] = ends[np.minimum(ends[at + 1], last)]
    at = np.flatnonzero(shape >= _BLOCK)
    start = np.where(shape[at] == _BLOCK, at + 1, np.minimum(ends[at + 1], last)).astype(np.int64)
    length = uleb_values(data, start, ends[start].astype(np.int64))
    following[at] = np.minimum(ends[start] + length, last)
    return following


def mark(following: NDArray[np.int32], begin: Ints, end: Ints, marks: Bytes) -> tuple[Ints, int]:
    """Sets marks to 1 where an instruction of the programs begin:end begins.

    Returns the ends of those programs whose last instruction goes on behind it, and how many steps of 15 ns it took.
    """
    some = begin < end
    position, stop, cut_off, work = begin[some], end[some], [np.zeros(0, np.int64)], 0
    while len(position) > _FEW_LANES:
        work += _ROUND_WORK + 2 * len(position)
        marks[position] = 1
        position = following[position].astype(np.int64)
        inside = position < stop
        if not inside.all():
            cut_off.append(stop[position > stop])
            position, stop = position[inside], stop[inside]
    next_of, found = following.data, []
    for at, last in zip(position.tolist(), stop.tolist(), strict=True):
        while at < last:
            found.append(at)
            at = next_of[at]
        if at > last:
            cut_off.append(np.array([last]))
    marks[np.array(found, np.int64)] = 1
    return np.concatenate(cut_off), work + _SINGLE_WORK * len(found)
