"""x86-64 machine code: bytes in, the length of the instruction that would begin at each of them out.

Every byte is taken for the first of an instruction, so that all are decoded together; who follows the lengths from a
function's start meets those that run. Encodings are those of 64-bit mode in Intel's Software Developer's Manual, volume
2 (325383-085), chapter 2 and appendix A. What no program uses, or only the kernel, has the length 0: not understood.
"""

from __future__ import annotations

import numpy as np

from bpfprof.array_types import NDArray
from bpfprof.dataclass import dataclass
from bpfprof.elf.leb128 import Bytes

PADDING_BYTES = 32  # behind the code, so that an instruction cut short is still inside the array
LONGEST_BYTES = 15
_PREFIX_LIMIT = 9  # assemblers fill gaps with a nop of up to 7

# A key is map << 8 | opcode. Maps of legacy encodings are 0 to 3 (one byte, 0F, 0F 38, 0F 3A); those of VEX and EVEX
# are 8 more than their own number.
MAP_0F, MAP_0F38, MAP_0F3A, VEX_MAPS = 0x100, 0x200, 0x300, 8
KEY_COUNT = 16 << 8
ARITHMETIC = range(0, 0x40, 8)  # add, or, adc, sbb, and, sub, xor, cmp: the first of 6 opcodes

_IMMEDIATE, _HAS_MODRM, _SHRINKS, _BAD = 0x0F, 0x10, 0x20, 0x80
_SIB_WITHOUT_BASE = 0x80
_LEGACY_PREFIXES = (0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3)
_TEST_GROUPS = ((0xF6, 1), (0xF7, 4))  # test has an immediate, the others do not


def _shapes() -> Bytes:
    """By key: bytes of immediate, _HAS_MODRM, _SHRINKS when prefix 66 makes 2 bytes of the 4, or _BAD."""
    shape = np.full(KEY_COUNT, _BAD, np.uint8)
    modrm = _HAS_MODRM
    for first in ARITHMETIC:
        shape[first : first + 4], shape[first + 4], shape[first + 5] = modrm, 1, 4 | _SHRINKS
    shape[[*range(0x50, 0x60), *range(0x90, 0x9A), *range(0x9B, 0xA0), *range(0xA4, 0xA8), *range(0xAA, 0xB0)]] = 0
    shape[[0xC3, 0xC9, 0xCC, 0xD7, 0xF4, 0xF5, *range(0xF8, 0xFE)]] = 0
    shape[[0x63, *range(0x84, 0x90), *range(0xD0, 0xD4), *range(0xD8, 0xE0), 0xF6, 0xF7, 0xFE, 0xFF]] = modrm
    shape[[0x6B, 0x80, 0x83, 0xC0, 0xC1, 0xC6]] = modrm | 1
    shape[[0x69, 0x81, 0xC7]] = modrm | 4 | _SHRINKS
    shape[[0x6A, *range(0x70, 0x80), 0xA8, *range(0xB0, 0xB8), 0xCD, *range(0xE0, 0xE4), 0xEB]] = 1
    shape[[0x68, 0xA9, *range(0xB8, 0xC0)]] = 4 | _SHRINKS
    shape[0xC2], shape[[0xE8, 0xE9]] = 2, 4
    two = shape[MAP_0F : MAP_0F + 256]
    two[:] = modrm
    two[[0x04, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0C, 0x24, 0x25, 0x26, 0x27, 0x36, 0x39]] = _BAD
    two[[*range(0x3B, 0x40), *range(0x78, 0x7C), 0xA6, 0xA7, 0xFF]] = _BAD
    two[[0x05, 0x0B, 0x0E, *range(0x30, 0x36), 0x37, 0x77, 0xA0, 0xA1, 0xA2, 0xA8, 0xA9, 0xAA, *range(0xC8, 0xD0)]] = 0
    two[[0x0F, *range(0x70, 0x74), 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6]] = modrm | 1
    two[0x80:0x90] = 4
    shape[MAP_0F38 : MAP_0F38 + 256], shape[MAP_0F3A : MAP_0F3A + 256] = modrm, modrm | 1
    vex = shape[(VEX_MAPS + 1) << 8 : (VEX_MAPS + 2) << 8]
    vex[:] = two
    vex[[*range(0x10), *range(0x80, 0x90)]] = _BAD
    vex[[*range(0x30, 0x40), *range(0x78, 0x7C), *range(0xA0, 0xB0), *range(0xC8, 0xD0)]] = modrm
    for number, value in ((2, modrm), (3, modrm | 1), (5, modrm), (6, modrm)):
        shape[(VEX_MAPS + number) << 8 : (VEX_MAPS + number + 1) << 8] = value
    return shape


def _modrm_sizes() -> Bytes:
    """By the ModRM byte: its own, that of SIB and those of a displacement. _SIB_WITHOUT_BASE: it may be 4 more."""
    sizes = np.ones(256, np.uint8)
    for value in range(0xC0):
        mod, rm = value >> 6, value & 7
        sizes[value] += (rm == 4) + (0 if mod == 0 and rm != 5 else 1 if mod == 1 else 4)
        sizes[value] |= _SIB_WITHOUT_BASE * (mod == 0 and rm == 4)
    return sizes


@dataclass(frozen=True)
class Lengths:
    """Of the instruction that would begin at each place."""

    size: Bytes  # in bytes; 0 when it is not understood
    body: Bytes  # bytes of prefixes before its opcode, or before the first of 0F, C4, C5, 62
    head: Bytes  # of the body that begins here: bytes before its opcode
    key: NDArray[np.uint16]  # of the body that begins here


_SHAPE, _MODRM_SIZE = _shapes(), _modrm_sizes()
_IS_PREFIX = np.zeros(256, np.uint8)
_IS_PREFIX[list(_LEGACY_PREFIXES)] = 1


def _looked_up(table: Bytes, values: Bytes) -> Bytes:
    """table[values], five times as fast."""
    return np.frombuffer(bytearray(values.tobytes().translate(table.tobytes())), np.uint8)


def lengths(code: Bytes) -> Lengths:
    """`code` ends with PADDING_BYTES of zeros, of which only half get an element."""
    count = len(code) - PADDING_BYTES // 2
    first = code[:count]
    key, head = _keys(code, count)
    shape, modrm = _looked_up(_SHAPE[:256], first), code[1 : count + 1].copy()
    escaped = np.flatnonzero(head)
    shape[escaped] = _SHAPE[key[escaped]]
    modrm[escaped] = code[escaped + head[escaped] + 1]
    rest = _looked_up(_MODRM_SIZE, modrm) * (shape >> 4 & 1)  # _HAS_MODRM
    size = 1 + head + (shape & _IMMEDIATE) + (rest & ~np.uint8(_SIB_WITHOUT_BASE))
    at = np.flatnonzero(rest & _SIB_WITHOUT_BASE)
    size[at] += 4 * (code[at + head[at] + 2] & 7 == 5).astype(np.uint8)
    for opcode, immediate in _TEST_GROUPS:
        at = np.flatnonzero((first == opcode) & (modrm & 0x30 == 0))
        size[at] += immediate
    is_xop = (first == 0x8F) & (modrm & 0x38 != 0)  # AMD's; nobody else has it
    size *= (shape != _BAD) & ~is_xop
    body = np.zeros(count, np.uint8)
    _add_rex(code, size, body)
    _add_prefixes(code, size, body, shape)
    size *= size <= LONGEST_BYTES
    return Lengths(size, body, head, key)


def _keys(code: Bytes, count: int) -> tuple[NDArray[np.uint16], Bytes]:
    """Key of the body that begins at each place, and the bytes before its opcode."""
    first = code[:count]
    key, head = first.astype(np.uint16), np.zeros(count, np.uint8)
    at = np.flatnonzero(first == 0x0F)
    second = code[at + 1]
    is_long = (second == 0x38) | (second == 0x3A)
    head[at] = 1 + is_long
    key[at] = np.where(second == 0x38, MAP_0F38, np.where(second == 0x3A, MAP_0F3A, MAP_0F)) | code[at + head[at]]
    at = np.flatnonzero(first == 0xC5)
    head[at], key[at] = 2, (VEX_MAPS + 1) << 8 | code[at + 2].astype(np.uint16)
    at = np.flatnonzero(first == 0xC4)
    number = code[at + 1].astype(np.uint16) & 0x1F
    number[number > 3] = 0  # a map that is bad
    head[at], key[at] = 3, (VEX_MAPS + number) << 8 | code[at + 3]
    at = np.flatnonzero(first == 0x62)
    number = code[at + 1].astype(np.uint16) & 7
    number[(code[at + 1] & 8 != 0) | (code[at + 2] & 4 == 0)] = 0
    head[at], key[at] = 4, (VEX_MAPS + number) << 8 | code[at + 4]
    return key, head


def _add_rex(code: Bytes, size: Bytes, body: Bytes) -> None:
    """Instructions that begin with REX: the length of what follows it and one more."""
    at = np.flatnonzero(code[: len(size) - 1] & 0xF0 == 0x40)
    following = size[at + 1]
    is_bad = (following == 0) | (code[at + 1] & 0xF0 == 0x40)
    is_wide = (code[at] & 8 != 0) & (code[at + 1] & 0xF8 == 0xB8)  # mov of 8 bytes
    size[at] = np.where(is_bad, 0, following + 1 + 4 * is_wide)
    body[at] = 1


def _add_prefixes(code: Bytes, size: Bytes, body: Bytes, shape: Bytes) -> None:
    """Instructions that begin with legacy prefixes, of which 66 shortens some immediates."""
    at = np.flatnonzero(_looked_up(_IS_PREFIX, code[: len(code) - PADDING_BYTES]))
    cursor, is_short = at + 1, code[at] == 0x66
    for _ in range(_PREFIX_LIMIT - 1):
        more = _IS_PREFIX[code[cursor]]
        if not more.any():
            break
        is_short |= (more > 0) & (code[cursor] == 0x66)
        cursor += more
    rest = size[cursor]
    inner = cursor + body[cursor]  # behind REX
    wide = (inner > cursor) & (code[cursor] & 8 != 0)
    shrinks = is_short & ~wide & (shape[inner] & _SHRINKS != 0)
    shrinks |= is_short & ~wide & (code[inner] == 0xF7) & (code[inner + 1] & 0x30 == 0)
    size[at] = np.where(rest > 0, cursor - at + rest - 2 * shrinks, 0)
    body[at] = inner - at
