"""Call frame programs of many functions at once: bytes and their bounds in, the rows they make out.

A lane is one program. Every byte is taken for the first of an instruction and gets its successor; following these marks
the instructions that really run. All registers are then last-write-wins streams over them. Instructions are those of
DWARF 5, section 6.4.2, numbered in section 7.24, and the GNU ones of the LSB 5.0 core specification, section 10.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bpfprof.elf.cfi import instructions as op
from bpfprof.elf.cfi.rules import (
    PLACE_IN_REGISTER,
    PLACE_LOST,
    PLACE_SAME,
    PLACE_UNDEFINED,
    RBP,
    RETURN_ADDRESS,
    RSP,
    SELECT_EXPRESSION,
    SELECT_NOTHING,
    SELECT_UNSUPPORTED,
    Expressions,
    FramePointerKind,
    Reason,
    place,
)
from bpfprof.elf.leb128 import HUGE, Bytes, Ints, leb_ends, sleb_values, uleb_values

Flags = NDArray[np.bool_]

_STEP_LIMIT = 1 << 33  # an advance beyond this is past the end of every function


@dataclass(frozen=True, slots=True)
class State:
    """What is known at some address, one element for each of many: a selector, its offset, and two places."""

    selector: Ints
    offset: Ints
    fp: Ints
    ra: Ints

    def at(self, indices: Ints) -> State:
        return State(self.selector[indices], self.offset[indices], self.fp[indices], self.ra[indices])


def blank_state(count: int) -> State:
    """Before the first instruction of a CIE."""
    zeros = np.zeros(count, np.int64)
    return State(zeros + (SELECT_UNSUPPORTED | Reason.NO_CFA), zeros, zeros + PLACE_SAME, zeros + PLACE_SAME)


@dataclass(frozen=True, slots=True)
class Lanes:
    """Programs in the order of their bytes: data[begin:end] of each, which must not touch one another.

    There is at least one byte before each, and another between the end of one and the byte before the next.
    """

    begin: Ints
    end: Ints
    code_factor: Ints
    data_factor: Ints
    initial: State


@dataclass(frozen=True, slots=True)
class ProgramRows:
    """Rows by lane and location; the last of each lane has `is_end` and no state worth reading."""

    lane: Ints
    location: Ints  # bytes from the beginning of the function
    is_end: Flags
    state: State
    failure: NDArray[np.uint8]  # of each lane, a Reason; it then has one row of SELECT_UNSUPPORTED
    work: int  # steps of some 15 ns that it took


def run_programs(data: bytes, lanes: Lanes, expressions: Expressions) -> ProgramRows:
    """All rows of all lanes. Never raises, whatever the bytes are; time and memory grow with their number."""
    return _Run(np.frombuffer(data + op.PADDING, np.uint8), lanes, expressions).rows()


class _Stream:
    """One value that instructions write: where, and what."""

    def __init__(self, begins: Ints, initial: Ints, count: int) -> None:
        self._begins, self.initial = begins, initial
        self._values = np.zeros(count, np.int64)
        self._sources = np.zeros(count, np.int32)  # its own index where a value is written
        self._is_constant = True
        self.chained_count = 0  # restores that were looked at

    def write(self, at: Ints, values: Ints) -> None:
        if len(at):
            self._is_constant = False
            self._values[at] = values
            self._sources[at] = at

    def settle(self, restores: Ints, remembers: Ints, wanted: Ints, lane: Ints) -> Ints:
        """The values after the instructions `wanted` of those lanes; a restore has the value its remember had."""
        if self._is_constant:
            return np.take(self.initial, lane)
        self.write(restores, np.zeros(len(restores), np.int64))
        self.write(self._begins, self.initial)
        last = np.maximum.accumulate(self._sources)
        if len(restores):
            source = np.arange(len(last))
            source[restores] = last[remembers]
            while True:
                self.chained_count += len(restores)  # each round doubles the length of the chains that are resolved
                further = source[source[restores]]
                if (further == source[restores]).all():
                    break
                source[restores] = further
            self._values[restores] = self._values[source[restores]]
        return np.take(self._values, last[wanted])


class _Run:
    """One batch. An instruction is known by its index among all that run, a virtual one before and after each lane."""

    def __init__(self, data: Bytes, lanes: Lanes, expressions: Expressions) -> None:
        self.data, self.lanes, self.expressions = data, lanes, expressions
        self.ends = leb_ends(data)
        following = op.successors(data, self.ends)
        marks = np.zeros(len(data), np.uint8)
        cut_off, self.mark_work = op.mark(following, lanes.begin, lanes.end, marks)
        marks &= op.MATTERS[data]
        marks[lanes.begin - 1], marks[lanes.end] = 2, 3
        self.at = np.flatnonzero(marks)
        role = marks[self.at]
        self.begins, self.finals = np.flatnonzero(role == 2), np.flatnonzero(role == 3)
        self.lane = np.repeat(np.arange(len(self.begins)), np.diff(self.begins, append=len(self.at)))
        self.codes = op.CODES[data[self.at]]
        self.codes[self.begins], self.codes[self.finals] = op.BEGIN, op.END
        self.failure = np.zeros(len(lanes.begin), np.uint8)
        self.expression_count = 0
        self.failure[np.searchsorted(lanes.end, cut_off)] = Reason.TRUNCATED
        self.present = np.bincount(self.codes, minlength=256)
        count, initial = len(self.at), lanes.initial
        self.selector = _Stream(self.begins, initial.selector, count)
        self.offset = _Stream(self.begins, initial.offset, count)
        self.fp = _Stream(self.begins, initial.fp, count)
        self.ra = _Stream(self.begins, initial.ra, count)

    def rows(self) -> ProgramRows:
        self._fail(self._of(op.BAD), Reason.UNKNOWN_INSTRUCTION)
        self._fail(self._of(op.SET_LOC), Reason.SET_LOC)
        location, advances = self._locations()
        self._define_cfa()
        self._short_forms()
        for code in op.OF_REGISTER:
            if self.present[code]:
                self._extended(code)
        restores, remembers = self._pairs() if self.present[op.RESTORE_STATE] else (np.zeros(0, np.int64),) * 2
        wanted = self._row_ends(advances)
        lane, is_end = self.lane[wanted], self.codes[wanted] == op.END
        streams = (self.selector, self.offset, self.fp, self.ra)
        state = State(*(stream.settle(restores, remembers, wanted, lane) for stream in streams))
        failure = self.failure[lane]
        state.selector[failure > 0] = SELECT_UNSUPPORTED | failure[failure > 0].astype(np.int64)
        state.selector[is_end] = SELECT_NOTHING
        for values in (state.offset, state.fp, state.ra):  # one key for all of them
            values[is_end] = 0
        work = len(self.data) + self.mark_work + 16 * len(self.at) + 8 * len(wanted) + 60 * self.expression_count
        work += 2 * sum(stream.chained_count for stream in streams)
        return ProgramRows(lane, location[wanted] - location[self.begins][lane], is_end, state, self.failure, work)

    def _of(self, code: int) -> Ints:
        return np.flatnonzero(self.codes == code) if self.present[code] else np.zeros(0, np.int64)

    def _fail(self, instructions: Ints, reason: Reason) -> None:
        self.failure[self.lane[instructions]] = reason

    def _uleb(self, instructions: Ints, skipped: int = 0) -> Ints:
        """An operand, after so many LEB128 operands."""
        return uleb_values(self.data, *self._operand(instructions, skipped))

    def _sleb(self, instructions: Ints, skipped: int = 0) -> Ints:
        return sleb_values(self.data, *self._operand(instructions, skipped))

    def _operand(self, instructions: Ints, skipped: int) -> tuple[Ints, Ints]:
        last = len(self.data) - 1
        at = self.at[instructions] + 1
        for _ in range(skipped):
            at = np.minimum(self.ends[at], last).astype(np.int64)
        return at, self.ends[at].astype(np.int64)

    def _scaled(self, instructions: Ints, operands: Ints) -> Ints:
        """Times the data alignment factor; what would not fit becomes too large to be used."""
        factor = self.lanes.data_factor[self.lane[instructions]]
        return np.clip(operands, -(1 << 40), 1 << 40) * factor

    def _locations(self) -> tuple[Ints, Flags]:
        """Location after each instruction, counted on from one lane to the next, and which ones advance it."""
        steps = np.zeros(len(self.at), np.int64)
        at = self._of(op.ADVANCE)
        steps[at] = self.data[self.at[at]] & 0x3F
        for code, size in ((op.ADVANCE_1, 1), (op.ADVANCE_2, 2), (op.ADVANCE_4, 4)):
            at = self._of(code)
            for index in range(size):
                steps[at] |= self.data[self.at[at] + 1 + index].astype(np.int64) << (8 * index)
        factor = self.lanes.code_factor
        if (factor != 1).any():
            steps *= factor[self.lane]
        return np.cumsum(np.minimum(steps, _STEP_LIMIT)), steps > 0

    def _define_cfa(self) -> None:
        for code, signed in ((op.DEF_CFA, False), (op.DEF_CFA_SF, True)):
            at = self._of(code)
            self.selector.write(at, np.minimum(self._uleb(at), 255))
            self.offset.write(at, self._scaled(at, self._sleb(at, 1)) if signed else self._uleb(at, 1))
        at = self._of(op.DEF_CFA_REGISTER)
        self.selector.write(at, np.minimum(self._uleb(at), 255))
        at = self._of(op.DEF_CFA_OFFSET)
        self.offset.write(at, self._uleb(at))
        at = self._of(op.DEF_CFA_OFFSET_SF)
        self.offset.write(at, self._scaled(at, self._sleb(at)))
        at = self._of(op.DEF_CFA_EXPRESSION)
        if len(at):
            self.selector.write(at, SELECT_EXPRESSION | self._expression(at, 0))

    def _expression(self, at: Ints, skipped: int) -> Ints:
        self.expression_count += len(at)
        start, end = self._operand(at, skipped)
        return self.expressions.indices(self.data, end, np.minimum(uleb_values(self.data, start, end), HUGE))

    def _short_forms(self) -> None:
        """DW_CFA_offset and DW_CFA_restore, which carry the register in their first byte."""
        at = self._of(op.OFFSET)
        register = self.data[self.at[at]] & 0x3F
        self._save(at, register, place(FramePointerKind.AT_CFA, self._scaled(at, self._uleb(at))))
        at = self._of(op.RESTORE)
        self._restore(at, self.data[self.at[at]] & 0x3F)

    def _save(self, at: Ints, register: NDArray[np.integer], places: Ints) -> None:
        for wanted, stream in ((RBP, self.fp), (RETURN_ADDRESS, self.ra)):
            chosen = register == wanted
            stream.write(at[chosen], places[chosen])
        self._fail(at[register == RSP], Reason.STACK_POINTER_ELSEWHERE)

    def _restore(self, at: Ints, register: NDArray[np.integer]) -> None:
        for wanted, stream in ((RBP, self.fp), (RETURN_ADDRESS, self.ra)):
            chosen = at[register == wanted]
            stream.write(chosen, stream.initial[self.lane[chosen]])

    def _extended(self, code: int) -> None:
        """Instructions that name their register in an operand."""
        at = self._of(code)
        register = self._uleb(at)
        if code in (op.RESTORE_EXTENDED, op.EXPRESSION, op.SAME_VALUE, op.VAL_OFFSET):
            # rsp: a signal frame restores it from where the CFA is read too, others say that it is the CFA.
            at, register = at[register != RSP], register[register != RSP]
        if code == op.RESTORE_EXTENDED:
            self._restore(at, register)
            return
        places = np.full(len(at), PLACE_LOST)
        if code == op.EXPRESSION:
            of_interest = np.isin(register, (RBP, RETURN_ADDRESS))
            at, register = at[of_interest], register[of_interest]
            which = self._expression(at, 1)
            places = np.array(self.expressions.places)[which]
        elif code == op.SAME_VALUE:
            places[:] = PLACE_SAME
        elif code == op.UNDEFINED:
            places[:] = PLACE_UNDEFINED
        elif code in (op.OFFSET_EXTENDED, op.GNU_NEGATIVE_OFFSET_EXTENDED):
            sign = 1 if code == op.OFFSET_EXTENDED else -1
            places = place(FramePointerKind.AT_CFA, sign * self._scaled(at, self._uleb(at, 1)))
        elif code == op.REGISTER:
            places = np.where((other := self._uleb(at, 1)) < RETURN_ADDRESS, PLACE_IN_REGISTER | other, PLACE_LOST)
        elif code == op.OFFSET_EXTENDED_SF:
            places = place(FramePointerKind.AT_CFA, self._scaled(at, self._sleb(at, 1)))
        self._save(at, register, places)

    def _pairs(self) -> tuple[Ints, Ints]:
        """Each restore_state and the remember_state it belongs to; a lane with one too many fails."""
        at = np.flatnonzero((self.codes == op.REMEMBER) | (self.codes == op.RESTORE_STATE))
        step = np.where(self.codes[at] == op.REMEMBER, 1, -1)
        depth, lane = np.cumsum(step), self.lane[at]
        first = np.flatnonzero(np.diff(lane, prepend=-1))
        depth -= np.repeat((depth - step)[first], np.diff(first, append=len(at)))
        level = depth + (step < 0)  # of both of a pair
        order = np.lexsort((at, level, lane))
        at, lane, level, step = at[order], lane[order], level[order], step[order]
        paired = np.zeros(len(at), np.bool_)
        paired[1:] = (lane[1:] == lane[:-1]) & (level[1:] == level[:-1]) & (step[1:] < 0) & (step[:-1] > 0)
        self._fail(at[(step < 0) & ~paired], Reason.RESTORE_WITHOUT_REMEMBER)
        which = np.flatnonzero(paired)
        return at[which], at[which - 1]

    def _row_ends(self, advances: Flags) -> Ints:
        """The last instruction before each advance and before the end, and the ends; of a failed lane its first."""
        keep = np.zeros(len(self.at), np.bool_)
        keep[:-1] = advances[1:]
        keep[self.finals - 1] = True
        keep[self.failure[self.lane] > 0] = False
        keep[self.finals] = True
        keep[self.begins[self.failure > 0]] = True
        return np.flatnonzero(keep)
