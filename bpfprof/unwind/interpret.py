"""The walk of a native stack in plain Python, by the same rows: registers and memory in, program counters out.

It says what the kernel side has to find, and is written to be read, not to be fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from typing import NamedTuple, Union

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.elf.cfi.rules import FLAG_IN_REGISTER, FLAG_SIGNAL, CfaKind, FramePointerKind, Rules
from bpfprof.model.ids import RuntimeAddress
from bpfprof.unwind.rows import FileRows, find

ReadWord = Callable[[int], "int | None"]
Rule = Union[np.void, Mapping[str, int]]  # a row of dtype RULE, or its fields by name
RuleAt = Callable[[int], "Rule | Stop"]  # for a runtime address
_WORD_MASK = (1 << 64) - 1
# As plain numbers: threads by the thousand are walked here when a recording begins.
_END_OF_STACK, _NO_RULE, _UNSUPPORTED = map(int, (CfaKind.END_OF_STACK, CfaKind.NO_RULE, CfaKind.UNSUPPORTED))
_PLT, _REGISTER, _SIGNAL_FRAME = int(CfaKind.PLT), int(CfaKind.REGISTER), int(CfaKind.SIGNAL_FRAME)
_RBP, _DEREF_RBP, _DEREF_RSP = int(CfaKind.RBP), int(CfaKind.DEREF_RBP), int(CfaKind.DEREF_RSP)
_SAME, _LOST = int(FramePointerKind.SAME), int(FramePointerKind.LOST)
_AT_CFA, _AT_RBP = int(FramePointerKind.AT_CFA), int(FramePointerKind.AT_RBP)
# Of CPython 3.14's JIT: see ebpf/native_frames.bpf.h.
_JIT_STACK_WORDS, _EVAL_STACK_BYTES, _PAGE_BYTES = 80, 4096, 4096
_SHIM_CODE_BYTES, _SHIM_STACK_BYTES, _SHIM_CALL_BYTES, _SHIM_CALL = 64, 48, 5, 0x0000000AE8


class Stop(IntEnum):
    """Why a walk ended. Only END_OF_STACK is a whole stack."""

    END_OF_STACK = 0  # the return address is undefined, or 0
    NO_MAPPING = 1
    NO_RULE = 2
    UNREADABLE = 3  # memory
    UNSUPPORTED = 4  # a rule, or a register whose value is not known here
    TOO_DEEP = 5
    NOT_GROWING = 6  # the caller's frame would not lie above this one
    NOT_READY = 7  # the table is being made


@dataclass(frozen=True)
class MappedFile:
    """Runtime addresses from `start` up to `end`; `bias` is what they are above the ELF addresses of `table`."""

    start: RuntimeAddress
    end: RuntimeAddress
    bias: int
    table: FileRows


@dataclass(frozen=True)
class Registers:
    """Of an interrupted thread. `bp` is None when not known; `others` are those known, by their DWARF number."""

    ip: int
    sp: int
    bp: int | None
    others: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Walk:
    """Program counters from the leaf on; all but the first, and those below a signal, are return addresses."""

    pcs: tuple[int, ...]
    stop: Stop


class _Frame(NamedTuple):
    pc: int
    sp: int
    bp: int | None  # None when a frame has lost it
    is_exact: bool  # the pc is of an instruction that runs, not of one that will be returned to
    others: Mapping[int, int]


def walk(
    registers: Registers, read_word: ReadWord, files: Sequence[MappedFile], rules: Rules, max_frames: int = 1024
) -> Walk:
    """The stack of one thread. `read_word` gives the 8 bytes at an address, None when they cannot be read."""

    def rule_at(pc: int) -> Rule | Stop:
        mapped = next((item for item in files if item.start <= pc < item.end), None)
        return Stop.NO_MAPPING if mapped is None else rules[find(mapped.table, pc - mapped.bias)]

    return walk_by(registers, read_word, rule_at, max_frames)


def walk_by(
    registers: Registers,
    read_word: ReadWord,
    rule_at: RuleAt,
    max_frames: int = 1024,
    is_jit: Callable[[int], bool] = lambda pc: False,
    rule_by_sp: Callable[[int], Rule | None] = lambda pc: None,
) -> Walk:
    """The same with the rules looked up by the caller, who may know why there is none.

    is_jit: whether an address may be code of CPython 3.14's own JIT. rule_by_sp: a rule by rsp, where that by rbp is of
    no use since rbp is not known; None: there is none.
    """
    frame = _Frame(registers.ip, registers.sp, registers.bp, True, registers.others)
    pcs = [frame.pc]
    while True:
        left = _leave_jit(frame, read_word) if is_jit(frame.pc) else None
        step = left or _caller(frame, read_word, rule_at, rule_by_sp)
        if isinstance(step, Stop):
            return Walk(tuple(pcs), step)
        if len(pcs) >= max_frames:
            return Walk(tuple(pcs), Stop.TOO_DEEP)
        frame = step
        pcs.append(frame.pc)


def _caller(
    frame: _Frame, read_word: ReadWord, rule_at: RuleAt, rule_by_sp: Callable[[int], Rule | None]
) -> _Frame | Stop:
    # A call may be the last instruction of its function: what is returned to is already in the next one.
    pc = frame.pc if frame.is_exact else frame.pc - 1
    rule = rule_at(pc)
    if isinstance(rule, Stop):
        return rule
    if frame.bp is None and rule["cfa_kind"] == _RBP:
        rule = rule_by_sp(frame.pc) or rule
    kind = rule["cfa_kind"]
    if kind == _END_OF_STACK:
        return Stop.END_OF_STACK
    if kind in (_NO_RULE, _UNSUPPORTED):
        return Stop.NO_RULE if kind == _NO_RULE else Stop.UNSUPPORTED
    cfa = _cfa(kind, rule, frame, pc, read_word)
    if isinstance(cfa, Stop):
        return cfa
    is_signal = bool(rule["flags"] & FLAG_SIGNAL)
    if rule["flags"] & FLAG_IN_REGISTER:
        return _by_register(frame, rule, cfa, read_word)
    if cfa <= frame.sp and not is_signal:  # a handler may run on a stack of its own
        return Stop.NOT_GROWING
    ra_base = frame.sp if kind == _SIGNAL_FRAME else cfa
    return_address = read_word(ra_base + int(rule["ra_offset"]) & _WORD_MASK)
    bp = _saved_bp(rule, frame, cfa, read_word)
    if return_address is None or isinstance(bp, Stop):
        return Stop.UNREADABLE
    if return_address == 0:
        return Stop.END_OF_STACK
    return _Frame(return_address, cfa, bp, is_signal, {})


def _leave_jit(frame: _Frame, read_word: ReadWord) -> _Frame | None:
    """The evaluation function below code of the JIT; None: it is not on the stack. See ebpf/native_frames.bpf.h."""
    at, pushed = frame.sp, 0
    for at in range(frame.sp, frame.sp + 8 * _JIT_STACK_WORDS, 8):
        word = read_word(at)
        if word is None:
            return None
        if word % _PAGE_BYTES < _SHIM_CODE_BYTES and word >= _PAGE_BYTES:
            code = read_word(word - _SHIM_CALL_BYTES)
            if code is not None and code & (1 << 8 * _SHIM_CALL_BYTES) - 1 == _SHIM_CALL:
                break
        if at < word < at + 2 * _EVAL_STACK_BYTES:
            pushed = word
    else:
        return None
    place = at + _SHIM_STACK_BYTES
    evaluation = read_word(place)
    bp = next((bp for bp in (frame.bp, pushed) if bp and 0 <= bp - place < _EVAL_STACK_BYTES), None)
    return _Frame(evaluation, place + 8, bp, False, {}) if evaluation else None


def _by_register(frame: _Frame, rule: Rule, cfa: int, read_word: ReadWord) -> _Frame | Stop:
    return_address, bp = frame.others.get(int(rule["ra_offset"])), _saved_bp(rule, frame, cfa, read_word)
    if return_address is None:
        return Stop.UNSUPPORTED
    if isinstance(bp, Stop):
        return bp
    return Stop.END_OF_STACK if return_address == 0 else _Frame(return_address, cfa, bp, False, {})


def _cfa(kind: int, rule: Rule, frame: _Frame, pc: int, read_word: ReadWord) -> int | Stop:
    """The frame's canonical address: rsp in the caller."""
    offset, extra = int(rule["cfa_offset"]), int(rule["cfa_extra"])
    if kind == _PLT:
        return frame.sp + offset + (8 if pc & 15 >= extra else 0)
    base: int | None = frame.sp
    if kind in (_RBP, _DEREF_RBP):
        base = frame.bp
    elif kind == _REGISTER:
        base = frame.others.get(extra)
    if base is None:
        return Stop.UNSUPPORTED
    address = base + offset & _WORD_MASK
    if kind not in (_DEREF_RBP, _DEREF_RSP, _SIGNAL_FRAME):
        return address
    value = read_word(address)
    return Stop.UNREADABLE if value is None else value + extra & _WORD_MASK


def _saved_bp(rule: Rule, frame: _Frame, cfa: int, read_word: ReadWord) -> int | Stop | None:
    """rbp in the caller; None when it is lost."""
    kind = rule["fp_kind"]
    if kind in (_SAME, _LOST):
        return frame.bp if kind == _SAME else None
    base = cfa if kind == _AT_CFA else frame.bp if kind == _AT_RBP else frame.sp
    if base is None:
        return None
    value = read_word(base + int(rule["fp_offset"]) & _WORD_MASK)
    return Stop.UNREADABLE if value is None else value
