"""Where a function keeps its stack: its instructions in, how to find the caller at each of them out.

A function is cut where an instruction moves rsp, changes or saves a register of interest, or does not go on. Between
two cuts the state is the same, so only cuts are looked at, and jumps join what they cut apart. What cannot be told for
sure (two ways to one place with different stacks, a return that would not find its address) costs the whole function.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.elf.asm import effects as op
from bpfprof.elf.asm.effects import RBP, RSP, Instructions, mask
from bpfprof.elf.cfi.rules import CfaKind, FramePointerKind, RuleFields
from bpfprof.elf.leb128 import Ints

# DWARF's numbers of the registers: psABI 1.0, figure 3.36.
_DWARF = (0, 2, 1, 3, 7, 6, 4, 5, *range(8, 16))
_SAVED, _LOST, _RETURN_ADDRESS = 0, 1, -8  # `fp` when it is not an offset, which is below _RETURN_ADDRESS
_OFFSET_LIMIT = 1 << 30
_NEAR = 255  # what a rule adds to a word of the stack, at most
_ADD, _AND, _SUB = 0, 4, 5  # of group 1
_MOVES = (op.STORE, op.LOAD, op.ADDRESS)
_INT8, _INT32 = struct.Struct("<b"), struct.Struct("<i")


class CannotTell(Exception):
    """The function does something that is not followed."""


class State(NamedTuple):
    """What is known before an instruction. Offsets are below the CFA: register == CFA - offset.

    `sp` is None when rsp is not known. `fp`: 0 when rbp is the caller's, 1 when that is lost, else where it is saved,
    from the CFA. `others` are registers and their offsets. `kept`: the word at rsp + the first number is the CFA minus
    the second, where rsp is not known.
    """

    sp: int | None
    fp: int
    others: frozenset[tuple[int, int]]
    kept: tuple[int, int] | None = None

    @property
    def is_lost(self) -> bool:
        return self.sp is None and not self.others and self.kept is None

    def offset(self, register: int) -> int | None:
        return self.sp if register == RSP else next((k for number, k in self.others if number == register), None)

    def rule(self) -> RuleFields:
        fp_kind = {0: FramePointerKind.SAME, 1: FramePointerKind.LOST}.get(self.fp, FramePointerKind.AT_CFA)
        fp_offset = self.fp if fp_kind == FramePointerKind.AT_CFA else 0
        if self.sp is not None:
            return int(CfaKind.RSP), int(fp_kind), 0, 0, self.sp, fp_offset, _RETURN_ADDRESS
        if not self.others and self.kept is not None:
            return int(CfaKind.DEREF_RSP), int(fp_kind), 0, self.kept[1], self.kept[0], fp_offset, _RETURN_ADDRESS
        register, offset = max(self.others, key=lambda known: (known[0] == RBP, known))
        if register == RBP:
            return int(CfaKind.RBP), int(fp_kind), 0, 0, offset, fp_offset, _RETURN_ADDRESS
        return int(CfaKind.REGISTER), int(fp_kind), 0, _DWARF[register], offset, fp_offset, _RETURN_ADDRESS


ENTRY = State(8, 0, frozenset())


def joined(first: State, second: State) -> State:
    """What holds whichever way was taken."""
    sp = first.sp if first.sp == second.sp else None
    kept = first.kept if first.kept == second.kept else None
    found = State(sp, first.fp if first.fp == second.fp else _LOST, first.others & second.others, kept)
    if found.is_lost:
        raise CannotTell
    return found


@dataclass(frozen=True)
class _Operands:
    """Of ModRM: its fields, the register that rm names, or base and displacement of a place in memory."""

    field: int
    reg: int
    rm: int | None
    place: tuple[int, int] | None


def _operands(code: bytes, opcode_at: int, rex: int) -> _Operands:
    modrm = code[opcode_at + 1]
    mod, field, rm, at = modrm >> 6, modrm >> 3 & 7, modrm & 7, opcode_at + 2
    reg = field | (rex & 4) << 1
    if mod == 3:
        return _Operands(field, reg, rm | (rex & 1) << 3, None)
    has_index, base = False, rm | (rex & 1) << 3
    if rm == 4:
        has_index = (code[at] >> 3 & 7 | (rex & 2) << 2) != 4
        base, rm, at = code[at] & 7 | (rex & 1) << 3, code[at] & 7, at + 1
    if has_index or (mod == 0 and rm == 5):
        return _Operands(field, reg, None, None)
    displacement = 0 if mod == 0 else (_INT8 if mod == 1 else _INT32).unpack_from(code, at)[0]
    return _Operands(field, reg, None, (base, displacement))


class Tracker:
    """One function: instructions first:last of those in `code`. `steps` are cuts, jumps and regions looked at."""

    def __init__(self, code: bytes, instructions: Instructions, first: int, last: int) -> None:
        self._code, self._all, self._first = code, instructions, first
        self._chosen = slice(first, last)
        self._known: dict[tuple[bytes, State], State] = {}  # the same instructions come again and again
        self.instruction_count = last - first
        self.steps = 0
        self._has_come_back = False  # rsp, from where it was kept

    def rows(self, step_limit: int) -> list[tuple[int, RuleFields | None]]:
        """(place, rule), ascending; each holds up to the next one. None where nothing comes by. Raises CannotTell."""
        if not (self._all.written[self._chosen] & mask(RSP, RBP)).any():
            return [(int(self._all.at[self._first]), ENTRY.rule())]
        cuts = self._cuts()
        at, end = self._all.at[self._chosen], self._all.end[self._chosen]
        self._spend(len(cuts), step_limit)
        jumps = self._jumps(at, at[cuts], step_limit)
        texts = [self._code[start:stop] for start, stop in zip(at[cuts].tolist(), end[cuts].tolist())]
        states = self._states(cuts, texts, jumps, step_limit)
        if not self._has_come_back and any(state and state.sp is None and not state.others for state in states):
            raise CannotTell  # what would be the CFA was never used as such
        rules = {state: None if state is None else state.rule() for state in set(states)}
        pairs = [(start, rules[state]) for start, state in zip([int(at[0]), *end[cuts].tolist()], states)]
        return [pairs[0], *(pair for before, pair in zip(pairs, pairs[1:]) if pair[1] != before[1])]

    def _states(
        self, cuts: Ints, texts: list[bytes], jumps: dict[int, list[int]], step_limit: int
    ) -> list[State | None]:
        """For each region, the first before the first cut; None when it is not reached."""
        goes_on = self._all.falls_through[self._chosen][cuts].tolist()
        states: list[State | None] = [ENTRY, *[None] * len(cuts)]
        waiting = [0]
        while waiting:
            region = waiting.pop()
            state = states[region]
            assert state is not None
            self._spend(1, step_limit)
            reached = [(target, state) for target in jumps.get(region, ())]
            if region < len(cuts):
                following = self._known.get((texts[region], state))
                if following is None:
                    following = self._after(int(cuts[region]) + self._first, state)
                    self._known[(texts[region], state)] = following
                if goes_on[region]:
                    reached.append((region + 1, following))
            for target, arriving in reached:
                before = states[target]
                if arriving.is_lost:
                    raise CannotTell
                merged = arriving if before is None else joined(before, arriving)
                if merged != before:
                    states[target] = merged
                    waiting.append(target)
        return states

    def _spend(self, steps: int, limit: int) -> None:
        self.steps = min(self.steps + steps, limit)
        if self.steps == limit:
            raise CannotTell

    def _cuts(self) -> Ints:
        """Indices, among the function's instructions, of those that change the state or do not go on."""
        written = self._all.written[self._chosen]
        wanted = mask(RSP, RBP)
        for index in np.flatnonzero(written & mask(RSP)).tolist():
            wanted |= self._source_of_rsp(index + self._first)
        self._tracked = [number for number in range(16) if wanted >> number & 1 and number != RSP]
        is_cut = (written & np.uint16(wanted) != 0) | ~self._all.falls_through[self._chosen]
        return np.flatnonzero(is_cut | self._all.may_store_rbp[self._chosen])

    def _source_of_rsp(self, index: int) -> int:
        """The registers that rsp is set from."""
        key = int(self._all.key[index])
        if key == op.LEAVE:
            return mask(RBP)
        if key not in _MOVES:
            return 0
        it = _operands(self._code, int(self._all.opcode_at[index]), int(self._all.rex[index]))
        if key == op.STORE:
            return mask(it.reg)
        return mask(it.rm) if it.rm is not None else mask(it.place[0]) if key == op.ADDRESS and it.place else 0

    def _jumps(self, at: Ints, cuts_at: Ints, step_limit: int) -> dict[int, list[int]]:
        """For each region the others that are jumped to from it."""
        target = self._all.target[self._chosen]
        begin, limit = int(at[0]), int(self._all.end[self._chosen][-1])
        inside = np.flatnonzero((target >= begin) & (target < limit))
        place = np.searchsorted(at, target[inside]).clip(max=len(at) - 1)
        if (at[place] != target[inside]).any():
            raise CannotTell
        source = np.searchsorted(cuts_at, at[inside], side="left")
        goal = np.searchsorted(cuts_at, target[inside], side="left")
        pairs = np.unique(source * (len(cuts_at) + 1) + goal)
        self._spend(len(pairs), step_limit)
        jumps: dict[int, list[int]] = {}
        for pair in pairs.tolist():
            jumps.setdefault(pair // (len(cuts_at) + 1), []).append(pair % (len(cuts_at) + 1))
        return jumps

    def _after(self, index: int, state: State) -> State:
        """The state behind an instruction."""
        key = int(self._all.key[index])
        if key in op.RETURNS and state.sp != 8:
            raise CannotTell
        prefixes = self._code[int(self._all.at[index]) : int(self._all.opcode_at[index])]
        rex = int(self._all.rex[index])
        new = None
        if not prefixes or (len(prefixes) == 1 and rex):
            new = self._push_or_pop(index, key, rex, state)
            if new is None and rex & 8:
                new = self._wide(index, key, rex, state)
        return _checked(self._clobbered(index, state) if new is None else new)

    def _clobbered(self, index: int, state: State) -> State:
        """An instruction that is not followed: what it writes is not known any more."""
        written = int(self._all.written[index])
        others = frozenset(item for item in state.others if not written >> item[0] & 1)
        fp = _LOST if written >> RBP & 1 and state.fp == _SAVED else state.fp
        moves = written >> RSP & 1
        return State(None if moves else state.sp, fp, others, None if moves else state.kept)

    def _push_or_pop(self, index: int, key: int, rex: int, state: State) -> State | None:
        """None when it is neither."""
        register = key & 7 | (rex & 1) << 3
        if key == op.LEAVE:
            frame = state.offset(RBP)
            state, key, register = state._replace(sp=frame), 0x5D, RBP
        is_push = key in op.PUSHES or key in (0x68, 0x6A, 0x9C)
        if key == op.GROUP_5:
            is_push = self._code[int(self._all.opcode_at[index]) + 1] >> 3 & 7 == op.PUSH_OF_GROUP_5
        if is_push:
            sp = None if state.sp is None else state.sp + 8
            saves = key == op.PUSHES[RBP] and not rex & 1 and state.fp == _SAVED and sp is not None
            return state._replace(sp=sp, fp=-(sp or 0) if saves else state.fp, kept=None)
        if key not in op.POPS and key != 0x9D:
            return None
        if key == 0x9D:
            return state._replace(sp=None if state.sp is None else state.sp - 8, kept=None)
        place = None if state.sp is None else -state.sp
        popped = self._with_register(state, register, place, None)
        return popped._replace(sp=None if state.sp is None or register == RSP else state.sp - 8, kept=None)

    def _with_register(self, state: State, register: int, loaded_from: int | None, offset: int | None) -> State:
        """A register was written: with what is at `loaded_from` (from the CFA), or with CFA - `offset`, or unknown."""
        if register == RSP:
            return state._replace(sp=offset, kept=None)
        others = {item for item in state.others if item[0] != register}
        if offset is not None and register in self._tracked:
            others.add((register, offset))
        fp = state.fp
        if register == RBP:
            is_restored = loaded_from is not None and loaded_from == fp
            fp = _SAVED if is_restored else _LOST if fp == _SAVED else fp
        return state._replace(fp=fp, others=frozenset(others))

    def _wide(self, index: int, key: int, rex: int, state: State) -> State | None:
        """Moves, additions and the like of 64 bits; None for anything else."""
        if key not in _MOVES and key not in (0x81, 0x83):
            return None
        opcode_at = int(self._all.opcode_at[index])
        it = _operands(self._code, opcode_at, rex)
        base = None if it.place is None else state.offset(it.place[0])
        place = None if base is None or it.place is None else it.place[1] - base  # from the CFA
        if key == op.STORE:
            if it.rm is not None:
                return self._with_register(state, it.rm, None, state.offset(it.reg))
            saves = it.reg == RBP and state.fp == _SAVED and place is not None and place < _RETURN_ADDRESS
            frame = state.offset(RBP) or 0
            if it.reg == RBP and it.place and it.place[0] == RSP and state.sp is None and 0 < frame <= _NEAR:
                return state._replace(kept=(it.place[1], frame))
            return state._replace(fp=place) if saves and place is not None else state
        if key == op.LOAD and it.reg == RSP and it.place and state.kept and it.place == (RSP, state.kept[0]):
            self._has_come_back = True
            return state._replace(sp=state.kept[1], kept=None)
        if key == op.LOAD:
            offset = None if it.rm is None else state.offset(it.rm)
            return self._with_register(state, it.reg, place, offset)
        if key == op.ADDRESS:
            return self._with_register(state, it.reg, None, None if place is None else -place)
        if it.rm is None or it.field not in (_ADD, _SUB):
            return None
        size = _INT8 if key == 0x83 else _INT32
        (value,) = size.unpack_from(self._code, opcode_at + 2)
        offset = state.offset(it.rm)
        moved = None if offset is None else offset + (value if it.field == _SUB else -value)
        return self._with_register(state, it.rm, None, moved)


def _checked(state: State) -> State:
    """Raises CannotTell when the return address would not be on the stack any more, or is too far away."""
    offsets = [offset for _, offset in state.others] + ([] if state.sp is None else [state.sp])
    if (state.sp is not None and state.sp < 8) or any(abs(offset) >= _OFFSET_LIMIT for offset in offsets):
        raise CannotTell
    return state
