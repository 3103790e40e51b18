"""Call frame programs: the bytes of many in, the rule ids that they make out, by location in the function.

A program is cut where it advances. The few bytes between two advances are the same in thousands of functions, so they
are executed once for each state that they meet, and then found in a dictionary. Instructions are those of DWARF 5,
section 6.4.2, numbered in section 7.24, and the GNU ones of the LSB 5.0 core specification, section 10.5.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter, getitem
from typing import NamedTuple, Union

import numpy as np

from bpfprof.array_types import NDArray
from bpfprof.elf.cfi.expressions import cfa_of, place_of
from bpfprof.elf.cfi.records import Cie
from bpfprof.elf.cfi.rules import (
    FLAG_IN_REGISTER,
    FLAG_SIGNAL,
    NO_RULE_ID,
    RBP,
    RETURN_ADDRESS,
    RSP,
    RULE_LIMIT,
    UNSUPPORTED_FIELDS,
    UNSUPPORTED_ID,
    CfaKind,
    FramePointerKind,
    Reason,
    RuleFields,
)
from bpfprof.elf.leb128 import Ints, read_sleb, read_uleb

# What follows the first byte: u and s are LEB128 numbers, b a block. 0x80 and 0xC0 stand for all that hold a register.
_OPERANDS = {
    **dict.fromkeys((0x00, 0x0A, 0x0B, 0xC0), ""),
    **dict.fromkeys((0x06, 0x07, 0x08, 0x0D, 0x0E, 0x2E, 0x80), "u"),
    **dict.fromkeys((0x05, 0x09, 0x0C, 0x14, 0x2F), "uu"),
    **{0x0F: "b", 0x10: "ub", 0x11: "us", 0x12: "us", 0x13: "s", 0x15: "us", 0x16: "ub"},
}
_OF_CFA = (0x0C, 0x0D, 0x0E, 0x0F, 0x12, 0x13)
_OF_REGISTER = (0x05, 0x06, 0x07, 0x08, 0x09, 0x10, 0x11, 0x14, 0x15, 0x16, 0x2F, 0x80, 0xC0)
_DECODED_LIMIT = 4096  # sequences; libLLVM has 1,800
_REMEMBER_LIMIT = 64  # nested; compilers nest two at most
_STATE_LIMIT = RULE_LIMIT
_BLOCK_LIMIT_BYTES = 31  # those that are understood have 11 at most

REASON_SHIFT, FAILED = 16, 1 << 31
END = (1 << 32) - 1  # the location of the last row of each program
# Steps of some 0.1 us: of an instruction sequence that is executed, of each of its bytes, and of a byte of a program.
_SEQUENCE_WORK, _INSTRUCTION_WORK, _BYTE_WORK = 100, 8, 2


def _pattern() -> re.Pattern[bytes]:
    """An advance, or the first byte of what cannot be read, and the instructions up to the next one."""
    number = rb"[\x80-\xff]*[\x00-\x7f]"
    block = b"(?:%s)" % b"|".join(re.escape(bytes([size])) + b".{%d}" % size for size in range(_BLOCK_LIMIT_BYTES + 1))
    parts = {"u": number, "s": number, "b": block}
    forms: dict[str, bytes] = {}
    for opcode, operands in _OPERANDS.items():
        last = opcode | 0x3F if opcode >= 0x80 else opcode
        forms[operands] = forms.get(operands, b"") + rb"\x%02x-\x%02x" % (opcode, last)
    choices = (b"[%s]%s" % (first, b"".join(parts[each] for each in form)) for form, first in forms.items())
    return re.compile(rb"([\x40-\x7f]|\x02.|\x03..|\x04....|.)((?:%s)*)" % b"|".join(choices), re.DOTALL)


_STEPS = _pattern()


class _Failed(Exception):
    """The program has no usable rows, for a Reason."""


class _Advances(dict[bytes, int]):
    """Bytes of each advance by its instruction; of what is none, the negative of a Reason."""

    def __missing__(self, code: bytes) -> int:
        if len(code) > 1:
            distance = int.from_bytes(code[1:], "little")
            return self.setdefault(code, distance) if len(code) <= 3 else distance
        known = code[0] in _OPERANDS or code[0] in (2, 3, 4) or code[0] >= 0x80
        return -(Reason.SET_LOC if code[0] == 1 else Reason.TRUNCATED if known else Reason.UNKNOWN_INSTRUCTION)


_ADVANCES = _Advances({b"": 0} | {bytes([0x40 + distance]): distance for distance in range(64)})
_END = b"\x01"  # stands behind each program; no sequence has that instruction


class _Place(NamedTuple):
    """Where a register of the caller is: FramePointerKind and offset, or one of the two kinds below."""

    kind: int
    offset: int = 0


_UNDEFINED, _IN_REGISTER = 5, 6
_KIND_OF_BASE = {RSP: CfaKind.RSP, RBP: CfaKind.RBP}
_SAME, _LOST = _Place(FramePointerKind.SAME), _Place(FramePointerKind.LOST)


_Base = Union[int, tuple[int, int, int], None]


class _Frame(NamedTuple):
    """What is known at some address. `base` is a register, what an expression said, or None before there is a CFA."""

    base: _Base = None
    offset: int = 0
    fp: _Place = _SAME
    ra: _Place = _SAME
    depth: int = 0
    remembered: _Frame | None = None


class _State(dict[bytes, "_State"]):
    """A frame of one CIE's functions; as a dictionary, the states that instructions lead to from it.

    `code` is the rule's id, with a Reason above it where that is UNSUPPORTED_ID. The state after an instruction that
    cannot be executed leads to itself; the one behind a program leads to where the next one begins.
    """

    __slots__ = ("code", "frame", "machine")

    def __init__(self, machine: Machine, frame: _Frame | None, code: int) -> None:
        self.machine, self.frame, self.code = machine, frame, code

    def __missing__(self, instructions: bytes) -> _State:
        if instructions == _END:
            found = self.machine.end
        elif self.frame is None:
            return self
        else:
            found = self.machine.after(self.frame, instructions)
        self[instructions] = found
        return found


class Machine:
    """Executes the instructions of one CIE's functions."""

    def __init__(self, programs: Programs, cie: Cie, content: bytes) -> None:
        """`content` is the CIE's own program."""
        self._programs, self._factor, self.code_factor = programs, cie.data_factor, cie.code_factor
        self._flags = FLAG_SIGNAL if cie.is_signal_frame else 0
        self._states: dict[_Frame, _State] = {}
        self.initial = _Frame()
        step = _STEPS.fullmatch(b"@" + content)
        start = self.after(self.initial, step[2]) if step else self._failed(Reason.BAD_CIE)
        self.is_bad = start.frame is None
        self.initial = start.frame or self.initial
        self.end = _State(self, self.initial, NO_RULE_ID)

    def _failed(self, reason: Reason) -> _State:
        return _State(self, None, UNSUPPORTED_ID | reason << REASON_SHIFT | FAILED)

    def after(self, frame: _Frame, instructions: bytes) -> _State:
        """The state after instructions between two advances."""
        if self._programs.is_full:
            return self._failed(Reason.TOO_MANY_RULES)
        self._programs.work += _SEQUENCE_WORK + _INSTRUCTION_WORK * len(instructions)
        try:
            for instruction in _decoded(instructions):
                frame = self._executed(frame, *instruction)
        except _Failed as failure:
            return self._failed(failure.args[0])
        except ValueError:  # a number of more than 10 bytes
            return self._failed(Reason.TRUNCATED)
        state = self._states.get(frame)
        if state is None:
            state = self._states[frame] = _State(self, frame, self._programs.rule_code(_rule(frame, self._flags)))
        return state

    def _executed(self, frame: _Frame, opcode: int, operand: int, second: int, block: bytes) -> _Frame:
        """The frame after one instruction. Raises _Failed."""
        if opcode in _OF_CFA:
            base, offset = self._cfa(frame, opcode, operand, second, block)
            return _Frame(base, offset, frame.fp, frame.ra, frame.depth, frame.remembered)
        if opcode in _OF_REGISTER:
            return self._with_register(frame, opcode, operand, second, block)
        if opcode == 0x0A:  # remember_state
            if frame.depth == _REMEMBER_LIMIT:
                raise _Failed(Reason.TOO_COSTLY)
            return _Frame(frame.base, frame.offset, frame.fp, frame.ra, frame.depth + 1, frame)
        if opcode == 0x0B:  # restore_state
            if frame.remembered is None:
                raise _Failed(Reason.RESTORE_WITHOUT_REMEMBER)
            return frame.remembered
        return frame  # nop, GNU_args_size: only a landing pad needs it

    def _cfa(self, frame: _Frame, opcode: int, operand: int, second: int, block: bytes) -> tuple[_Base, int]:
        """Base and offset after an instruction that says where the CFA is."""
        if opcode == 0x0C:  # def_cfa
            return operand, second
        if opcode == 0x0D:  # def_cfa_register
            return operand, frame.offset
        if opcode == 0x0E:  # def_cfa_offset
            return frame.base, operand
        if opcode == 0x12:  # def_cfa_sf
            return operand, second * self._factor
        if opcode == 0x13:  # def_cfa_offset_sf
            return frame.base, operand * self._factor
        return cfa_of(block), frame.offset  # def_cfa_expression

    def _with_register(self, frame: _Frame, opcode: int, register: int, operand: int, block: bytes) -> _Frame:
        """The frame after an instruction that says where a register is."""
        if register == RBP:
            return frame._replace(fp=self._place(opcode, operand, block, self.initial.fp))
        if register == RETURN_ADDRESS:
            return frame._replace(ra=self._place(opcode, operand, block, self.initial.ra))
        # rsp: a signal frame restores it from where the CFA is read too, others say that it is the CFA.
        if register == RSP and opcode not in (0x06, 0x08, 0x10, 0x14, 0xC0):
            raise _Failed(Reason.STACK_POINTER_ELSEWHERE)
        return frame

    def _place(self, opcode: int, operand: int, block: bytes, initial: _Place) -> _Place:
        """Where the register that an instruction names is saved."""
        if opcode in (0x80, 0x05, 0x11):  # offset, offset_extended, offset_extended_sf
            return _at_cfa(operand * self._factor)
        if opcode == 0x2F:  # GNU_negative_offset_extended
            return _at_cfa(-operand * self._factor)
        if opcode in (0xC0, 0x06):  # restore, restore_extended
            return initial
        if opcode == 0x07:  # undefined
            return _Place(_UNDEFINED)
        if opcode == 0x08:  # same_value
            return _SAME
        if opcode == 0x09:  # register
            return _Place(_IN_REGISTER, operand)
        if opcode == 0x10:  # expression
            return _Place(*place_of(block))
        return _LOST  # val_offset, val_offset_sf, val_expression: a value that is not in memory


@lru_cache(_DECODED_LIMIT)
def _decoded(code: bytes) -> list[tuple[int, int, int, bytes]]:
    """Opcode, two numbers and a block of each instruction; a register in the first byte is the first number."""
    found, at = [], 0
    while at < len(code):
        opcode, at = code[at], at + 1
        numbers, block = [], b""
        if opcode >= 0x80:
            numbers, opcode = [opcode & 0x3F], opcode & 0xC0
        for kind in _OPERANDS[opcode]:
            value, at = (read_sleb if kind == "s" else read_uleb)(code, at)
            if kind == "b":
                block, at = code[at : at + value], at + value
            else:
                numbers.append(value)
        first, second, *_ = *numbers, 0, 0
        found.append((opcode, first, second, block))
    return found


def _at_cfa(offset: int) -> _Place:
    return _Place(FramePointerKind.AT_CFA, offset) if abs(offset) < 1 << 31 else _LOST


def _rule(frame: _Frame, flags: int) -> RuleFields | Reason:
    """The rule of a frame, or why there is none."""
    if frame.base is None:
        return Reason.NO_CFA
    if frame.ra.kind == _UNDEFINED:
        return int(CfaKind.END_OF_STACK), 0, flags, 0, 0, 0, 0
    if isinstance(frame.base, tuple):
        kind, offset, extra = frame.base
    else:
        kind = _KIND_OF_BASE.get(frame.base, CfaKind.REGISTER)
        offset, extra = frame.offset, frame.base if kind == CfaKind.REGISTER else 0
    if kind == CfaKind.UNSUPPORTED or (kind == CfaKind.REGISTER and extra >= RETURN_ADDRESS):
        return Reason.CFA_EXPRESSION
    if abs(offset) >= 1 << 31:
        return Reason.OFFSET_TOO_LARGE
    if frame.ra.kind == FramePointerKind.AT_RSP and kind == CfaKind.DEREF_RSP:
        kind = CfaKind.SIGNAL_FRAME
    elif frame.ra.kind == _IN_REGISTER and frame.ra.offset < RETURN_ADDRESS and frame.ra.offset != RSP:
        flags |= FLAG_IN_REGISTER
    elif frame.ra.kind != FramePointerKind.AT_CFA:
        return Reason.RETURN_ADDRESS_ELSEWHERE
    fp = frame.fp if frame.fp.kind < _UNDEFINED else _LOST
    return int(kind), int(fp.kind), flags, extra, offset, fp.offset, frame.ra.offset


class Programs:
    """The rows of all programs of a file, one behind the other.

    Those of program n are `locations` and `codes` from `firsts[n]` up to `firsts[n + 1]`; the last of them is at END
    and has no rule. A code is a rule's id, with a Reason << 16 where it is UNSUPPORTED_ID. The first programs are
    those of functions that have no rules, one for each Reason, by its number.
    """

    def __init__(self) -> None:
        self.work = 0  # steps of some 0.1 us that it took
        self.row_count = 0
        self._ids: dict[RuleFields, int] = {(0,) * 7: NO_RULE_ID, UNSUPPORTED_FIELDS: UNSUPPORTED_ID}
        self._state_count = 0
        reasons = np.array(list(Reason), np.uint32)
        self._codes = [np.column_stack((UNSUPPORTED_ID | reasons << REASON_SHIFT, 0 * reasons)).ravel()]
        self._locations = [np.tile(np.array([0, END], np.uint32), len(reasons))]
        self.program_count = len(reasons)
        self._machines: dict[tuple[int, int], Machine] = {}

    def machine(self, cie: Cie, data: bytes) -> Machine:
        """That of a CIE of the file's section, which remembers what instructions do."""
        key = cie.begin, cie.end
        if key not in self._machines:
            self._machines[key] = Machine(self, cie, data[cie.begin : cie.end])
        return self._machines[key]

    def forget_rows(self) -> None:
        """Begins anew with what is known of instructions and rules."""
        del self._codes[1:], self._locations[1:]
        self.program_count = len(self._codes[0]) // 2
        self.work = self.row_count = 0

    @property
    def rules(self) -> list[RuleFields]:
        """By id."""
        return list(self._ids)

    @property
    def is_full(self) -> bool:
        return self._state_count > _STATE_LIMIT

    def rule_code(self, rule: RuleFields | Reason) -> int:
        self._state_count += 1
        if isinstance(rule, Reason):
            return UNSUPPORTED_ID | rule << REASON_SHIFT
        if len(self._ids) >= RULE_LIMIT and rule not in self._ids:
            return UNSUPPORTED_ID | Reason.TOO_MANY_RULES << REASON_SHIFT
        return self._ids.setdefault(rule, len(self._ids))

    def run(self, machine: Machine, programs: list[bytes]) -> None:
        """Adds the rows of programs of one CIE; those that fail have a code with FAILED somewhere."""
        advances: list[bytes] = []
        sequences: list[bytes] = []
        for program in programs:
            step = _STEPS.split(b"@" + program)  # three elements for each, the first of them empty
            advances += step[1::3]
            sequences += step[2::3]
            advances.append(b"")
            sequences.append(_END)
        states = accumulate(sequences, getitem, initial=machine.end)
        next(states)
        codes = np.fromiter(map(attrgetter("code"), states), np.uint32, len(sequences))
        distances = np.fromiter(map(_ADVANCES.__getitem__, advances), np.int64, len(advances))
        bad = np.flatnonzero(distances < 0)
        codes[bad] = FAILED | UNSUPPORTED_ID | -distances[bad] << REASON_SHIFT
        locations = np.cumsum(np.maximum(distances, 0) * machine.code_factor)
        ends = np.flatnonzero(codes == NO_RULE_ID)
        locations -= np.repeat(np.append(0, locations[ends[:-1]]), np.diff(ends, prepend=-1))
        np.minimum(locations, END - 1, out=locations)
        locations[ends] = END
        self._locations.append(locations.astype(np.uint32))
        self._codes.append(codes)
        self.work += _BYTE_WORK * sum(map(len, programs))
        self.row_count += len(codes)
        self.program_count += len(programs)

    def rows(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32], Ints]:
        """`locations`, `codes` and `firsts`."""
        locations, codes = np.concatenate(self._locations), np.concatenate(self._codes)
        return locations, codes, np.append(0, np.flatnonzero(codes == NO_RULE_ID) + 1)
