"""What one row of a call frame table says: how to get from a frame to its caller on x86-64.

Register numbers are those of the System V ABI, x86-64 supplement 1.0, figure 3.36: 6 is rbp, 7 is rsp, 16 is the return
address. Expressions are those of DWARF 5, section 2.5; `Expressions` knows the few that compilers and linkers write.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from bpfprof import abi
from bpfprof.abi.dtypes import RULE_DTYPE
from bpfprof.elf.leb128 import Bytes, Ints, read_sleb, read_uleb

RBP, RSP, RETURN_ADDRESS = 6, 7, 16


_CFA, _FP = abi.ENUMS["bp_cfa_kind"], abi.ENUMS["bp_frame_pointer_kind"]


class CfaKind(IntEnum):
    """Where the canonical frame address is, which is what rsp will be in the caller: see `bp_cfa_kind` of abi.h."""

    NO_RULE = _CFA["BP_CFA_NO_RULE"]
    UNSUPPORTED = _CFA["BP_CFA_UNSUPPORTED"]
    END_OF_STACK = _CFA["BP_CFA_END_OF_STACK"]
    RSP = _CFA["BP_CFA_RSP"]
    RBP = _CFA["BP_CFA_RBP"]
    REGISTER = _CFA["BP_CFA_REGISTER"]
    DEREF_RBP = _CFA["BP_CFA_DEREF_RBP"]
    DEREF_RSP = _CFA["BP_CFA_DEREF_RSP"]
    PLT = _CFA["BP_CFA_PLT"]
    SIGNAL_FRAME = _CFA["BP_CFA_SIGNAL_FRAME"]


class FramePointerKind(IntEnum):
    """Where the caller's rbp is: see `bp_frame_pointer_kind` of abi.h."""

    SAME = _FP["BP_FP_SAME"]
    AT_CFA = _FP["BP_FP_AT_CFA"]
    AT_RBP = _FP["BP_FP_AT_RBP"]
    AT_RSP = _FP["BP_FP_AT_RSP"]
    LOST = _FP["BP_FP_LOST"]


FLAG_IN_REGISTER, FLAG_SIGNAL = abi.CONSTANTS["BP_RULE_IN_REGISTER"], abi.CONSTANTS["BP_RULE_SIGNAL"]
# The first two rules of every file.
NO_RULE_ID, UNSUPPORTED_ID = abi.CONSTANTS["BP_RULE_NO_RULE"], abi.CONSTANTS["BP_RULE_UNSUPPORTED"]
RULE = RULE_DTYPE
RULE_LIMIT = 1 << 16  # distinct rules of a file; all files of a machine have some 4,000

Rules = NDArray[np.void]
_Fields = tuple[int, int, int, int, int, int, int]


class Reason(IntEnum):
    """Why a function, or a part of it, has no usable rule."""

    NONE = 0
    UNKNOWN_INSTRUCTION = 1
    TRUNCATED = 2
    SET_LOC = 3
    RESTORE_WITHOUT_REMEMBER = 4
    STACK_POINTER_ELSEWHERE = 5
    NO_CFA = 6
    CFA_EXPRESSION = 7
    RETURN_ADDRESS_ELSEWHERE = 8
    OFFSET_TOO_LARGE = 9
    TOO_MANY_RULES = 10
    BAD_CIE = 11
    AUGMENTATION = 12
    POINTER_ENCODING = 13
    BAD_RANGE = 14
    OVERLAP = 15
    TOO_LONG = 16
    TOO_MANY_FUNCTIONS = 17
    TOO_MANY_ROWS = 18
    TOO_COSTLY = 19
    NOT_FOLLOWED = 20  # code without an FDE

    @property
    def text(self) -> str:
        return self.name.lower().replace("_", " ")


# A place is where a register of the caller was saved: kind << 32 | offset (32 bits), in an int64.
PLACE_LOST, PLACE_UNDEFINED = FramePointerKind.LOST << 32, 5 << 32
PLACE_IN_REGISTER = 6 << 32  # and the register's number; of a return address only
PLACE_SAME = 0

# A selector says what the CFA is computed from: a register number, or one of these, or an expression.
SELECT_NOTHING, SELECT_UNSUPPORTED, SELECT_EXPRESSION, SELECT_SIGNAL = 1 << 16, 1 << 17, 1 << 20, 1 << 40

# DWARF 5, section 7.7.1
_OP_DEREF, _OP_PLUS, _OP_PLUS_UCONST, _OP_LIT0, _OP_BREG0 = 0x06, 0x22, 0x23, 0x30, 0x70
# breg7 8, breg16 0, lit15, and, litN, ge, lit3, shl, plus: binutils bfd/elf64-x86-64.c, elf_x86_64_eh_frame_lazy_plt
# (N = 11) and elf_x86_64_eh_frame_lazy_ibt_plt (N = 10).
_PLT_HEAD, _PLT_TAIL = b"\x77\x08\x80\x00\x3f\x1a", b"\x2a\x33\x24\x22"


def place(kind: FramePointerKind, offsets: Ints) -> Ints:
    """Packed places; an offset that takes more than 32 bits is lost."""
    fits = np.abs(offsets) < 1 << 31
    return np.where(fits, (int(kind) << 32) | (offsets & 0xFFFFFFFF), PLACE_LOST)


def _unpack(value: int) -> tuple[int, int]:
    return value >> 32, (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)


def _register_plus(code: bytes) -> tuple[int, int, bytes] | None:
    """`bregN k` at the beginning: register, k, what follows."""
    if len(code) < 2 or not _OP_BREG0 <= code[0] < _OP_BREG0 + 32:
        return None
    offset, end = read_sleb(code, 1)
    return (code[0] - _OP_BREG0, offset, code[end:]) if abs(offset) < 1 << 31 else None


def _addend(code: bytes) -> int | None:
    """What is added after the dereference: nothing, `plus_uconst c` or `litC plus`."""
    if not code:
        return 0
    if code[0] == _OP_PLUS_UCONST and len(code) > 1:
        value, end = read_uleb(code, 1)
        return value if end == len(code) and value < 256 else None
    if len(code) == 2 and _OP_LIT0 <= code[0] < _OP_LIT0 + 32 and code[1] == _OP_PLUS:
        return code[0] - _OP_LIT0
    return None


def cfa_of_expression(code: bytes) -> tuple[CfaKind, int, int]:
    """(kind, offset, extra) of DW_CFA_def_cfa_expression; UNSUPPORTED when it is none of those we know."""
    if code[:6] == _PLT_HEAD and code[7:] == _PLT_TAIL and _OP_LIT0 <= code[6] < _OP_LIT0 + 32:
        return CfaKind.PLT, 8, code[6] - _OP_LIT0
    base = _register_plus(code)
    if base is not None and base[0] in (RBP, RSP):
        register, offset, rest = base
        if not rest:
            return (CfaKind.RBP if register == RBP else CfaKind.RSP), offset, 0
        addend = _addend(rest[1:]) if rest[0] == _OP_DEREF else None
        if addend is not None:
            return (CfaKind.DEREF_RBP if register == RBP else CfaKind.DEREF_RSP), offset, addend
    return CfaKind.UNSUPPORTED, 0, 0


def place_of_expression(code: bytes) -> int:
    """The packed place that DW_CFA_expression gives; PLACE_LOST when it is not rbp + k or rsp + k."""
    base = _register_plus(code)
    if base is None or base[2] or base[0] not in (RBP, RSP):
        return PLACE_LOST
    kind = FramePointerKind.AT_RBP if base[0] == RBP else FramePointerKind.AT_RSP
    return (kind << 32) | (base[1] & 0xFFFFFFFF)


class Expressions:
    """The distinct expressions of a file. The first stands for all that are too long, or too many."""

    _LONGEST_BYTES = 16
    _LIMIT = 4096

    def __init__(self) -> None:
        self._index: dict[bytes, int] = {}
        self.cfas = [(CfaKind.UNSUPPORTED, 0, 0)]
        self.places = [PLACE_LOST]

    def indices(self, data: Bytes, at: Ints, length: Ints) -> Ints:
        """For the expressions that begin at `at`, their indices in `cfas` and `places`."""
        columns = np.arange(self._LONGEST_BYTES)
        content = data[np.minimum(at[:, None] + columns, len(data) - 1)]
        content[columns >= length[:, None]] = 0
        fitting = np.minimum(length, self._LONGEST_BYTES + 1).astype(np.uint64)
        # One number for both, as in RuleCollector: numbers are sorted ten times as fast as bytes.
        words = content.view("<u8")
        keys = words[:, 0] * np.uint64(0x9E3779B97F4A7C15) + words[:, 1] * np.uint64(0xC2B2AE3D27D4EB4F)
        keys = (keys ^ keys >> np.uint64(32)) * np.uint64(0x165667B19E3779F9) + fitting
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        items = zip(content[first], fitting[first].tolist(), strict=True)
        return np.array([self._intern(item.tobytes(), size) for item, size in items], np.int64)[which]

    def _intern(self, content: bytes, length: int) -> int:
        item = content[:length]
        if length > self._LONGEST_BYTES:
            return 0
        known = self._index.get(item, 0)
        if known or len(self.cfas) >= self._LIMIT:
            return known
        try:
            cfa, saved = cfa_of_expression(item), place_of_expression(item)
        except (IndexError, ValueError):
            cfa, saved = self.cfas[0], PLACE_LOST
        self._index[item] = len(self.cfas)
        self.cfas.append(cfa)
        self.places.append(saved)
        return self._index[item]


class RuleCollector:
    """The distinct rules of one file, found by what the call frame program left behind."""

    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._keys = np.zeros(0, np.uint64)
        self._ids = np.zeros(0, np.uint16)
        self._reasons = np.zeros(0, np.uint8)
        empty = (0, 0, 0, 0, 0, 0, 0)
        self._index: dict[_Fields, int] = {empty: NO_RULE_ID, (int(CfaKind.UNSUPPORTED), *empty[1:]): UNSUPPORTED_ID}

    @property
    def rules(self) -> Rules:
        """Of dtype RULE, by id."""
        return np.array(list(self._index), RULE)

    @property
    def is_full(self) -> bool:
        return len(self._keys) >= RULE_LIMIT - 2

    def intern(
        self, selectors: Ints, offsets: Ints, fps: Ints, ras: Ints
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
        """Rule ids and, where they are UNSUPPORTED_ID, a Reason."""
        # One number for the four: odd multipliers of 64 bits keep a few thousand rules apart (a clash costs 2**-40).
        keys = selectors.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        keys += offsets.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
        keys += fps.astype(np.uint64) * np.uint64(0x165667B19E3779F9)
        keys += ras.astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93)
        slot, known = self._look_up(keys)
        if not known.all():
            fresh, first = np.unique(keys[~known], return_index=True)
            chosen = np.flatnonzero(~known)[first]
            self._add(fresh, np.column_stack([field[chosen] for field in (selectors, offsets, fps, ras)]))
            slot, known = self._look_up(keys)
        if known.all():
            return self._ids[slot], self._reasons[slot]
        ids = np.where(known, self._ids[slot], UNSUPPORTED_ID).astype(np.uint16)
        return ids, np.where(known, self._reasons[slot], Reason.TOO_MANY_RULES).astype(np.uint8)

    def _look_up(self, keys: NDArray[np.uint64]) -> tuple[Ints, NDArray[np.bool_]]:
        if not len(self._keys):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
        slot = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return slot, self._keys[slot] == keys

    def _add(self, keys: NDArray[np.uint64], fields: Ints) -> None:
        room = RULE_LIMIT - len(self._keys) - 2
        ids, reasons = [], []
        for selector, offset, fp, ra in fields[:room].tolist():
            rule, reason = self._rule(selector, offset, fp, ra)
            ids.append(self._index.setdefault(rule, len(self._index)) if not reason else UNSUPPORTED_ID)
            reasons.append(reason)
        all_keys = np.concatenate((self._keys, keys[:room]))
        order = np.argsort(all_keys)
        self._keys = all_keys[order]
        self._ids = np.concatenate((self._ids, np.array(ids, np.uint16)))[order]
        self._reasons = np.concatenate((self._reasons, np.array(reasons, np.uint8)))[order]

    def _rule(self, selector: int, offset: int, fp: int, ra: int) -> tuple[_Fields, Reason]:
        """Fields of a RULE, and NONE; or why there is none."""
        nothing = (0, 0, 0, 0, 0, 0, 0)
        if selector & SELECT_NOTHING:
            return nothing, Reason.NONE
        if selector & SELECT_UNSUPPORTED:
            return nothing, Reason(selector & 0xFF)
        flags = FLAG_SIGNAL if selector & SELECT_SIGNAL else 0
        if ra == PLACE_UNDEFINED:
            return (int(CfaKind.END_OF_STACK), 0, flags, 0, 0, 0, 0), Reason.NONE
        kind, offset, extra = self._cfa(selector & ~SELECT_SIGNAL, offset)
        if kind == CfaKind.UNSUPPORTED:
            return nothing, Reason.CFA_EXPRESSION
        if abs(offset) >= 1 << 31:
            return nothing, Reason.OFFSET_TOO_LARGE
        ra_kind, ra_offset = _unpack(ra)
        if ra_kind == FramePointerKind.AT_RSP and kind == CfaKind.DEREF_RSP:
            kind = CfaKind.SIGNAL_FRAME
        elif ra_kind == PLACE_IN_REGISTER >> 32 and ra_offset < RETURN_ADDRESS and ra_offset != RSP:
            flags |= FLAG_IN_REGISTER
        elif ra_kind != FramePointerKind.AT_CFA:
            return nothing, Reason.RETURN_ADDRESS_ELSEWHERE
        fp_kind, fp_offset = _unpack(min(fp, PLACE_LOST))
        return (int(kind), fp_kind, flags, extra, offset, fp_offset, ra_offset), Reason.NONE

    def _cfa(self, selector: int, offset: int) -> tuple[CfaKind, int, int]:
        if selector & SELECT_EXPRESSION:
            return self._expressions.cfas[selector & 0xFFFF]
        if selector in (RSP, RBP):
            return (CfaKind.RSP if selector == RSP else CfaKind.RBP), offset, 0
        return (CfaKind.REGISTER, offset, selector) if selector < RETURN_ADDRESS else (CfaKind.UNSUPPORTED, 0, 0)
