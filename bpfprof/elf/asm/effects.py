"""x86-64 instructions that run: where they begin in, and where they jump and which registers they write out.

A register counts as written when any of its bits may be; rather one too many than one too few. Only general registers
are looked at. Encodings as in `lengths`.
"""

from __future__ import annotations

import numpy as np

from bpfprof.array_types import NDArray
from bpfprof.dataclass import dataclass
from bpfprof.elf.asm.lengths import ARITHMETIC, KEY_COUNT, MAP_0F, MAP_0F3A, MAP_0F38, VEX_MAPS, Lengths
from bpfprof.elf.leb128 import Bytes, Ints

RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI = range(8)  # as instructions number them; DWARF does it otherwise
STORE, LOAD, ADDRESS, LEAVE = 0x89, 0x8B, 0x8D, 0xC9  # mov %reg,rm; mov rm,%reg; lea
PUSHES, POPS = range(0x50, 0x58), range(0x58, 0x60)
TERMINATORS = (0xC2, 0xC3, 0xCC, 0xE9, 0xEB, 0xF4, MAP_0F | 0x0B)  # and jmp of the group FF
RETURNS = (0xC2, 0xC3)
GROUP_5, CALLS_OF_GROUP_5, JUMPS_OF_GROUP_5, PUSH_OF_GROUP_5 = 0xFF, (2, 3), (4, 5), 6

LONGEST_CALL_BYTES = 7  # without prefixes that mean nothing to a call
_CMP = 0x38
_REG, _LOW, _VVVV, _BYTE = 1, 2, 4, 8  # ModRM.reg; the opcode's low bits; VEX.vvvv; the registers are of 8 bits
_JUMP_8, _JUMP_32, _ENDS = 1, 2, 4

Keys = NDArray[np.uint16]
Masks = NDArray[np.uint16]
Numbers = NDArray[np.integer]  # of registers


@dataclass(frozen=True)
class Instructions:
    """One element for each, in the order of their addresses; places are offsets in the code."""

    at: Ints
    end: Ints
    opcode_at: Ints
    key: Keys
    rex: Bytes  # of VEX and EVEX the same bits; 0 without
    written: Masks  # bit n for register n
    target: Ints  # of a jump to a place that the instruction names; else -1
    falls_through: NDArray[np.bool_]  # the next one may run after it
    may_store_rbp: NDArray[np.bool_]


def mask(*registers: int) -> int:
    return sum(1 << register for register in registers)


_CALL_CLOBBERED = mask(RAX, RCX, RDX, RSI, RDI, 8, 9, 10, 11)  # psABI 1.0, figure 3.4


def _keys(base: int, *opcodes: int) -> list[int]:
    return [base | opcode for opcode in opcodes]


_VEX_0F, _VEX_0F38, _VEX_0F3A = ((VEX_MAPS + number) << 8 for number in (1, 2, 3))


def _written_rm() -> Bytes:
    """By key: for which values of ModRM.reg, a bit each, the register that ModRM.rm names is written."""
    rm = np.zeros(KEY_COUNT, np.uint8)
    for first in ARITHMETIC:
        rm[first : first + 2] = 0 if first == _CMP else 0xFF
    rm[[0x86, 0x87, 0x88, 0x89, 0x8C, 0x8F, 0xC0, 0xC1, 0xC6, 0xC7, *range(0xD0, 0xD4)]] = 0xFF
    rm[[0x80, 0x81, 0x83]] = 0x7F  # not cmp
    rm[[0xF6, 0xF7]] = 0x0C  # not, neg
    rm[[0xFE, 0xFF]] = 0x03  # inc, dec
    rm[_keys(MAP_0F, 0x7E, *range(0x90, 0xA0), 0xA4, 0xA5, 0xAB, 0xAC, 0xAD, 0xB0, 0xB1, 0xB3, 0xBB, 0xC0, 0xC1)] = 0xFF
    rm[MAP_0F | 0xBA] = 0xE0  # bts, btr, btc
    rm[MAP_0F | 0xC7] = 0xC0  # rdrand, rdseed
    rm[_keys(MAP_0F, 0x00, 0xAE)] = 0x03  # sldt, str; rdfsbase, rdgsbase
    rm[MAP_0F | 0x1E] = 0x02  # rdsspq
    rm[[_VEX_0F | 0x7E, *_keys(MAP_0F3A, *range(0x14, 0x18)), *_keys(_VEX_0F3A, *range(0x14, 0x18))]] = 0xFF
    return rm


def _other_operands() -> Bytes:
    """By key: other operands that are written."""
    other = np.zeros(KEY_COUNT, np.uint8)
    for first in ARITHMETIC:
        other[[first, first + 2]] = _BYTE
        other[[first + 2, first + 3]] |= 0 if first == _CMP else _REG
    other[[0x63, 0x69, 0x6B, 0x86, 0x87, 0x8A, 0x8B, 0x8D]] = _REG
    other[[0x80, 0x86, 0x88, 0x8A, 0xC0, 0xC6, 0xD0, 0xD2, 0xF6, 0xFE]] |= _BYTE
    other[[*POPS, *range(0x91, 0x98), *range(0xB0, 0xC0)]] = _LOW
    other[0xB0:0xB8] |= _BYTE
    other[_keys(MAP_0F, 0x02, 0x03, *range(0x40, 0x50), 0xAF, 0xB6, 0xB7, 0xB8, 0xBC, 0xBD, 0xBE, 0xBF)] = _REG
    other[_keys(MAP_0F, 0xC0, 0xC1, 0x2C, 0x2D, 0x50, 0xC5, 0xD7)] = _REG
    other[_keys(MAP_0F, *range(0x90, 0xA0), 0xB0, 0xC0)] |= _BYTE
    other[MAP_0F | 0xC8 : (MAP_0F | 0xCF) + 1] = _LOW
    other[_keys(MAP_0F38, 0xF0, 0xF1, 0xF6)] = _REG
    other[_keys(_VEX_0F, 0x2C, 0x2D, 0x50, 0x78, 0x79, 0x93, 0xC5, 0xD7)] = _REG
    other[[*_keys(_VEX_0F38, 0xF2, 0xF5, 0xF7), _VEX_0F3A | 0xF0]] = _REG
    other[_keys(_VEX_0F38, 0xF3, 0xF6)] = _VVVV, _VVVV | _REG
    other[_keys((VEX_MAPS + 5) << 8, 0x2C, 0x2D, 0x78, 0x79)] = _REG
    return other


def _implied() -> Masks:
    """By key: registers that are written without being named. Of group FF see `_masks`."""
    implied = np.zeros(KEY_COUNT, np.uint16)
    for first in ARITHMETIC:
        implied[[first + 4, first + 5]] = 0 if first == _CMP else mask(RAX)
    implied[[*PUSHES, *POPS, 0x68, 0x6A, 0x8F, 0x9C, 0x9D]] = mask(RSP)
    implied[[*range(0x91, 0x99), 0x9F, 0xD7]] = mask(RAX)
    implied[[0x99, 0xC9, 0xE8]] = mask(RDX), mask(RSP, RBP), _CALL_CLOBBERED
    implied[[0xF6, 0xF7]] = mask(RAX, RDX)
    implied[0xE0:0xE3] = mask(RCX)
    implied[[*range(0xA4, 0xA8), *range(0xAA, 0xB0)]] = mask(RAX, RCX, RSI, RDI)
    implied[[0xCD, MAP_0F | 0x05]] = mask(RAX, RCX, RDX, 11)
    implied[_keys(MAP_0F, 0xB0, 0xB1)] = mask(RAX)
    implied[_keys(MAP_0F, 0x01, 0x31, 0x32, 0x33, 0xA2, 0xC7)] = mask(RAX, RBX, RCX, RDX)
    implied[[*_keys(MAP_0F3A, 0x61, 0x63), *_keys(_VEX_0F3A, 0x61, 0x63)]] = mask(RCX)  # pcmpestri, pcmpistri
    return implied


def _flows() -> Bytes:
    flow = np.zeros(KEY_COUNT, np.uint8)
    flow[[*range(0x70, 0x80), *range(0xE0, 0xE4), 0xEB]] = _JUMP_8
    flow[[0xE9, *_keys(MAP_0F, *range(0x80, 0x90))]] = _JUMP_32
    flow[list(TERMINATORS)] |= _ENDS
    return flow


_RM, _OTHER, _IMPLIED, _FLOW = _written_rm(), _other_operands(), _implied(), _flows()
_WRITES = (_RM != 0) | (_OTHER & ~np.uint8(_BYTE) != 0) | (_IMPLIED != 0)


def effects(code: Bytes, lengths: Lengths, at: Ints) -> Instructions:
    """Of the instructions that begin at those places, each of them understood."""
    body_at = at + lengths.body[at]
    key, opcode_at = lengths.key[body_at], body_at + lengths.head[body_at]
    end = at + lengths.size[at]
    rex = np.zeros(len(at), np.uint8)
    written = np.zeros(len(at), np.uint16)
    chosen = np.flatnonzero(_WRITES[key])
    rex[chosen] = _extensions(code, body_at[chosen], lengths.body[at[chosen]])
    vvvv_at = body_at[chosen] + np.where(code[body_at[chosen]] == 0xC5, 1, 2)
    written[chosen] = _masks(code, key[chosen], opcode_at[chosen], rex[chosen], code[vvvv_at])
    flow = _FLOW[key]
    target = np.full(len(at), -1)
    short, near = np.flatnonzero(flow & _JUMP_8), np.flatnonzero(flow & _JUMP_32)
    target[short] = end[short] + code[end[short] - 1].view(np.int8)
    distance = sum(code[end[near] - 4 + index].astype(np.uint32) << np.uint32(8 * index) for index in range(4))
    target[near] = end[near] + np.asarray(distance, np.uint32).view(np.int32)
    ends = flow & _ENDS != 0
    group = np.flatnonzero(key == GROUP_5)
    ends[group] = np.isin(code[opcode_at[group] + 1] >> 3 & 7, JUMPS_OF_GROUP_5)
    stores = key == STORE
    stores[stores] = code[opcode_at[stores] + 1] & 0x38 == RBP << 3
    return Instructions(at, end, opcode_at, key, rex, written, target, ~ends, stores)


def _extensions(code: Bytes, body_at: Ints, prefixes: Bytes) -> Bytes:
    """REX, or what VEX or EVEX says in its place (there R, X and B are inverted, and C5 has R only); 0 without any."""
    first, inverted = code[body_at], ~code[body_at + 1] >> 5 & 7
    before = code[np.maximum(body_at - 1, 0)]
    rex = np.where((prefixes > 0) & (before & 0xF0 == 0x40), before, 0).astype(np.uint8)
    rex = np.where((first == 0xC4) | (first == 0x62), inverted | 0x40, rex).astype(np.uint8)
    return np.where(first == 0xC5, inverted & 4 | 0x40, rex).astype(np.uint8)


def _masks(code: Bytes, key: Keys, opcode_at: Ints, rex: Bytes, vvvv: Bytes) -> Masks:
    """The registers that are written."""
    modrm, other = code[opcode_at + 1], _OTHER[key]
    field = modrm >> 3 & 7
    is_high_byte = (other & _BYTE != 0) & (rex == 0)  # numbers 4 to 7 are ah, ch, dh, bh

    def named(low_bits: Numbers, extension: Numbers) -> Masks:
        return _bit(np.where(is_high_byte, low_bits & 3, low_bits | extension))

    high_rm = (rex & 1) << 3
    bits: Masks
    bits = ((modrm >= 0xC0) & (_RM[key] >> field & 1 != 0)) * named(modrm & 7, high_rm)
    bits |= (other & _REG != 0) * named(field, (rex & 4) << 1)
    bits |= (other & _LOW != 0) * named((key & 7).astype(np.uint8), high_rm)
    bits |= (other & _VVVV != 0) * _bit(~vvvv >> 3 & 15)
    bits |= ((key == GROUP_5) & np.isin(field, CALLS_OF_GROUP_5)) * np.uint16(_CALL_CLOBBERED)
    bits |= ((key == GROUP_5) & (field == PUSH_OF_GROUP_5)) * np.uint16(mask(RSP))
    bits |= _IMPLIED[key]
    return bits


def _bit(register: Numbers) -> Masks:
    return np.left_shift(np.uint16(1), register.astype(np.uint16))


def ends_with_call(code: bytes) -> bool:
    """Whether x86-64 code ends with a call: E8 rel32, or FF /2 (Intel SDM volume 2, CALL and table 2-2)."""
    if len(code) >= 5 and code[-5] == 0xE8:
        return True
    for size in range(2, min(len(code), LONGEST_CALL_BYTES) + 1):
        mode, operation, register = code[1 - size] >> 6, code[1 - size] >> 3 & 7, code[1 - size] & 7
        if code[-size] != 0xFF or operation != 2:
            continue
        has_index = mode != 3 and register == 4
        has_base = not (mode == 0 and (register == 5 or (has_index and size > 2 and code[2 - size] & 7 == 5)))
        offset_size = 0 if mode == 3 or (mode == 0 and has_base) else 1 if mode == 1 else 4
        if size == 2 + has_index + offset_size:
            return True
    return False
