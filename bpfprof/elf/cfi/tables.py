"""Call frame information of an ELF file: an `ElfImage` in, rows sorted by address with their rules out.

`.eh_frame` through the table of `.eh_frame_hdr`, else walked; then `.debug_frame` for what is left, and the code itself
where neither tells what it does. x86-64 only. What cannot be understood costs the function it belongs to, no more: that
function gets the rule UNSUPPORTED, or none if it had none, and is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bpfprof.elf.asm.traced_rules import with_handwritten
from bpfprof.elf.cfi.implied_rules import unwritten_rules, unwritten_tables
from bpfprof.elf.cfi.programs import Lanes, State, blank_state, run_programs
from bpfprof.elf.cfi.records import Cie, Functions, Offsets, RecordReader, find_records
from bpfprof.elf.cfi.rules import (
    NO_RULE_ID,
    RULE_LIMIT,
    SELECT_SIGNAL,
    UNSUPPORTED_ID,
    Expressions,
    Reason,
    RuleCollector,
    Rules,
)
from bpfprof.elf.cfi.sections import FrameSection, code_range, read_debug_frame, read_eh_frame
from bpfprof.elf.image import EM_X86_64, ElfError, ElfImage
from bpfprof.elf.leb128 import Ints

_ET_REL = 1
# What one file may cost, whatever it holds; libtorch_cpu, the largest we know, has 2.6 million rows, 150 million steps.
_ROW_LIMIT = 6_000_000
_WORK_LIMIT = 280_000_000  # steps of some 15 ns
_RECORD_WORK = 60
_MERGE_LIMIT = 2_000_000  # rows of two sections together
_CHUNK_BYTES = 256 << 10  # of programs decoded together: some 40 MB of arrays
_PROGRAM_LIMIT_BYTES = 256 << 10

Flags = NDArray[np.bool_]
Places = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class CallFrames:
    """Rows sorted by address; each holds up to the next one, the last one for ever.

    `rule` are indices of `rules` (dtype RULE); 0 is NO_RULE and begins every gap between functions, 1 is UNSUPPORTED.
    `function_starts` and `function_ends` are what the FDEs cover, sorted by start. `reasons` says how many of the
    `function_count` have no rules, or no rule somewhere, and why; `unsupported_count` is their sum.
    """

    address: NDArray[np.uint64]
    rule: NDArray[np.uint16]
    rules: Rules
    function_starts: NDArray[np.uint64]
    function_ends: NDArray[np.uint64]
    function_count: int
    reasons: dict[str, int]

    @property
    def unsupported_count(self) -> int:
        return sum(self.reasons.values())


def read_call_frames(image: ElfImage) -> CallFrames:
    """All rows of a file; none when it has no call frame information.

    Raises ElfError when the file is not for x86-64, or its section lies outside the file, is too large (64 MiB) or
    cannot be decompressed. A file that would cost too much is decoded in part, and the rest is in `reasons`.
    """
    if image.machine != EM_X86_64 or image.type == _ET_REL:
        raise ElfError("not a program or a library for x86-64")
    none = np.zeros(0, np.uint64)
    frames = CallFrames(none, np.zeros(0, np.uint16), RuleCollector(Expressions()).rules, none, none, 0, {})
    work = 0
    for read in (read_eh_frame, read_debug_frame):
        reason = _left_out(frames, work)
        if reason and image.section(".debug_frame") is not None:
            reasons = Counter(frames.reasons) + Counter({reason.text: 1})
            return replace(frames, function_count=frames.function_count + 1, reasons=dict(reasons))
        try:
            section, header = read(image)
            if section.data:
                row_limit = _MERGE_LIMIT - len(frames.rule) if frames.function_count else _ROW_LIMIT
                decoder = _Decoder(section, code_range(image), row_limit, work)
                del section
                frames = _merged(frames, decoder.decode(header))
                work = decoder.work
        except ElfError:
            if not frames.function_count:
                raise
    return _with_handwritten(image, _with_unwritten(image, frames)) if frames.function_count else frames


def _with_handwritten(image: ElfImage, frames: CallFrames) -> CallFrames:
    """With rules of assembly that does not say what it does to the stack."""
    if not len(frames.address):
        return frames
    found = with_handwritten(
        image, frames.address, frames.rule, frames.rules, (frames.function_starts, frames.function_ends)
    )
    starts = np.concatenate((frames.function_starts, found.starts))
    order = np.argsort(starts, kind="stable")
    reasons = Counter(frames.reasons) + Counter({Reason.NOT_FOLLOWED.text: found.lost_count})
    return CallFrames(
        found.address,
        found.rule,
        found.rules,
        starts[order],
        np.concatenate((frames.function_ends, found.ends))[order],
        frames.function_count + len(found.starts) + found.lost_count,
        dict(reasons),
    )


def _with_unwritten(image: ElfImage, frames: CallFrames) -> CallFrames:
    """With rules of places that lie in a gap between functions but are known."""
    code = code_range(image)
    for rows in unwritten_tables(image, frames.address) if len(frames.rules) < RULE_LIMIT - 64 else ():
        begin, end = rows[0][0], rows[-1][0]
        if not code[0] <= begin < end <= code[1]:
            continue
        position = int(np.searchsorted(frames.address, np.uint64(begin), side="right"))
        is_gap = position == 0 or frames.rule[position - 1] == NO_RULE_ID
        if not is_gap or (position < len(frames.address) and frames.address[position] < end):
            continue
        if position < len(frames.address) and frames.address[position] == end:
            rows = rows[:-1]
        address, rule = frames.address, frames.rule
        if position and address[position - 1] == begin:  # the gap begins here: its row goes
            position -= 1
            address, rule = np.delete(address, position), np.delete(rule, position)
        rules = unwritten_rules()
        ids = [number + len(frames.rules) if number > UNSUPPORTED_ID else number for _, number in rows]
        first = int(np.searchsorted(frames.function_starts, np.uint64(begin)))
        frames = replace(
            frames,
            address=np.insert(address, position, np.array([start for start, _ in rows], np.uint64)),
            rule=np.insert(rule, position, np.array(ids, np.uint16)),
            rules=np.concatenate((frames.rules, rules)),
            function_starts=np.insert(frames.function_starts, first, np.uint64(begin)),
            function_ends=np.insert(frames.function_ends, first, np.uint64(end)),
            function_count=frames.function_count + 1,
        )
    return frames


def _left_out(frames: CallFrames, work: int) -> Reason:
    """Why no second section is read; NONE when it is."""
    if len(frames.rule) >= _MERGE_LIMIT:
        return Reason.TOO_MANY_ROWS
    return Reason.TOO_COSTLY if work >= _WORK_LIMIT else Reason.NONE


def _merged(first: CallFrames, second: CallFrames) -> CallFrames:
    """`first`, and `second` where that knows no function: of a Go program only the start-up code has .eh_frame."""
    if not first.function_count or not second.function_count:
        return first if first.function_count else second
    if len(first.rules) + len(second.rules) > RULE_LIMIT or len(first.rule) + len(second.rule) > _MERGE_LIMIT:
        reason = Reason.TOO_MANY_RULES if len(first.rule) + len(second.rule) <= _MERGE_LIMIT else Reason.TOO_MANY_ROWS
        reasons = Counter(first.reasons) + Counter({reason.text: second.function_count})
        return replace(first, function_count=first.function_count + second.function_count, reasons=dict(reasons))
    address = np.union1d(first.address, second.address)
    own, other = _rules_at(first, address), _rules_at(second, address)
    moved = np.where(other > UNSUPPORTED_ID, other + len(first.rules), other)
    rule = np.where(own == NO_RULE_ID, moved, own).astype(np.uint16)
    keep = np.ones(len(rule), np.bool_)
    keep[1:] = rule[1:] != rule[:-1]
    starts = np.concatenate((first.function_starts, second.function_starts))
    order = np.argsort(starts, kind="stable")
    return CallFrames(
        address[keep],
        rule[keep],
        np.concatenate((first.rules, second.rules)),
        starts[order],
        np.concatenate((first.function_ends, second.function_ends))[order],
        first.function_count + second.function_count,
        dict(Counter(first.reasons) + Counter(second.reasons)),
    )


def _rules_at(frames: CallFrames, address: NDArray[np.uint64]) -> Ints:
    if not len(frames.rule):
        return np.full(len(address), NO_RULE_ID, np.int64)
    index = np.searchsorted(frames.address, address, side="right") - 1
    return np.where(index >= 0, frames.rule[index], NO_RULE_ID).astype(np.int64)


class _Decoder:
    """One section. Addresses are kept as offsets from the first executable segment, in 32 bits."""

    def __init__(self, section: FrameSection, code: tuple[int, int], row_limit: int, work: int) -> None:
        self._section = section
        self._code = code
        self._row_limit = row_limit
        self._row_count = 0
        self.work = work  # steps that this file has cost until now
        self._expressions = Expressions()
        self._table = RuleCollector(self._expressions)
        self._reasons: Counter[Reason] = Counter()
        self._parts: list[tuple[NDArray[np.uint32], NDArray[np.uint16]]] = []

    def decode(self, header: tuple[int, bytes] | None) -> CallFrames:
        reader = RecordReader(self._section)
        records, left_out = find_records(self._section, header)
        functions = reader.read(records, self._code)
        self._reasons.update(left_out)
        self._reasons.update(functions.lost)
        count = len(functions.start) + self._reasons.total()
        self.work += _RECORD_WORK * len(records)
        del records
        starts, ends, limits, gaps = _ranges(functions, self._code[0])
        none = np.zeros(0, np.uint64)
        functions = replace(functions, start=none, end=none)  # half of the memory that records take
        initial, failures = self._initial_states(reader.cies)
        failure = np.where(functions.failure > 0, functions.failure, failures[functions.cie])
        failure[functions.stop - functions.begin > _PROGRAM_LIMIT_BYTES] = Reason.TOO_LONG
        runs = np.flatnonzero((failure == 0) & (limits > starts))
        for chosen in _chunks(functions.begin, functions.stop, runs):
            exhausted = self._exhausted()
            failure[chosen] = exhausted
            if not exhausted:
                self._run(functions, chosen, reader.cies, initial, (starts[chosen], limits[chosen], gaps[chosen]))
        del reader, functions, runs
        self._section = FrameSection(b"", 0, is_debug=False)
        self._plain_rows(starts, limits, gaps, failure)
        del limits, gaps, failure
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        del order
        address, rule = self._joined()
        reasons = {reason.text: number for reason, number in self._reasons.items() if number}
        covered = (_based(starts, self._code[0]), _based(ends, self._code[0]))
        return CallFrames(_based(address, self._code[0]), rule, self._table.rules, *covered, count, reasons)

    def _exhausted(self) -> Reason:
        """Why the file gets no further programs run; NONE when it does."""
        if self._row_count >= self._row_limit:
            return Reason.TOO_MANY_ROWS
        if self._table.is_full:
            return Reason.TOO_MANY_RULES
        return Reason.TOO_COSTLY if self.work >= _WORK_LIMIT else Reason.NONE

    def _initial_states(self, cies: list[Cie]) -> tuple[State, NDArray[np.uint8]]:
        """For each CIE the state after its program, and a Reason where there is none."""
        begin = np.array([cie.begin for cie in cies], np.int64)
        # Programs are copied one behind the other, for only some of the section's bytes are theirs.
        data, at, ends, starts = bytearray(), 0, [], []
        for cie in cies:
            starts.append(at + 2)
            data += b"\0\0" + self._section.data[cie.begin : cie.end]
            at = len(data)
            ends.append(at)
        lanes = Lanes(
            np.array(starts, np.int64),
            np.array(ends, np.int64),
            np.array([cie.code_factor for cie in cies], np.int64),
            np.array([cie.data_factor for cie in cies], np.int64),
            blank_state(len(begin)),
        )
        rows = run_programs(bytes(data), lanes, self._expressions)
        state = rows.state.at(np.flatnonzero(rows.is_end) - 1)
        signal = np.array([cie.is_signal_frame for cie in cies], np.int64) * SELECT_SIGNAL
        failures = np.where(rows.failure > 0, Reason.BAD_CIE, 0).astype(np.uint8)
        return State(state.selector | signal, state.offset, state.fp, state.ra), failures

    def _plain_rows(self, starts: Places, limits: Places, gaps: Flags, failure: NDArray[np.uint8]) -> None:
        """Functions that are not run: one row, and one where it ends before a gap."""
        failed = np.flatnonzero(failure > 0)
        self._count(failure[failed])
        failed = failed[limits[failed] > starts[failed]]
        self._append(starts[failed], np.full(len(failed), UNSUPPORTED_ID, np.uint16))
        ends = limits[failed][gaps[failed]]
        self._append(ends, np.full(len(ends), NO_RULE_ID, np.uint16))

    def _count(self, failures: NDArray[np.uint8]) -> None:
        for reason, number in enumerate(np.bincount(failures, minlength=1).tolist()):
            if reason and number:
                self._reasons[Reason(reason)] += number

    def _run(
        self, functions: Functions, chosen: Ints, cies: list[Cie], initial: State, bounds: tuple[Places, Places, Flags]
    ) -> None:
        """Decodes one chunk of functions, which lie close to one another in the section."""
        starts, limits, gaps = bounds[0].astype(np.int64), bounds[1].astype(np.int64), bounds[2]
        begin, stop = functions.begin[chosen].astype(np.int64), functions.stop[chosen].astype(np.int64)
        cie = functions.cie[chosen].astype(np.int64)
        first = int(begin[0]) - 1
        lanes = Lanes(
            begin - first,
            stop - first,
            np.array([item.code_factor for item in cies], np.int64)[cie],
            np.array([item.data_factor for item in cies], np.int64)[cie],
            initial.at(cie),
        )
        rows = run_programs(self._section.data[first : int(stop[-1])], lanes, self._expressions)
        self.work += rows.work
        signal = initial.selector[cie] & SELECT_SIGNAL
        location = rows.location + starts[rows.lane]
        location[rows.is_end] = limits
        inside = location < limits[rows.lane]
        inside[rows.is_end] = gaps
        state, lane = rows.state.at(np.flatnonzero(inside)), rows.lane[inside]
        selector = state.selector & ~SELECT_SIGNAL | signal[lane]
        ids, reasons = self._table.intern(selector, state.offset, state.fp, state.ra)
        is_end = rows.is_end[inside]
        ids[is_end], reasons[is_end] = NO_RULE_ID, Reason.NONE
        bad = np.flatnonzero(reasons)
        self._count(reasons[bad][np.unique(lane[bad], return_index=True)[1]])
        keep = np.ones(len(ids), np.bool_)
        keep[1:] = (ids[1:] != ids[:-1]) | (lane[1:] != lane[:-1])  # another function may lie between two lanes
        self._append(location[inside][keep], ids[keep])

    def _append(self, locations: NDArray[np.integer], ids: NDArray[np.uint16]) -> None:
        self._parts.append((locations.astype(np.uint32, copy=False), ids))
        self._row_count += len(ids)

    def _joined(self) -> tuple[Places, NDArray[np.uint16]]:
        """All rows by address, without those that say the same as the one before."""
        address = np.concatenate([part[0] for part in self._parts])
        rule = np.concatenate([part[1] for part in self._parts])
        self._parts.clear()
        if (address[1:] < address[:-1]).any():
            order = np.argsort(address, kind="stable")
            address, rule = address[order], rule[order]
            del order
        keep = np.ones(len(rule), np.bool_)
        keep[1:] = rule[1:] != rule[:-1]
        return address[keep], rule[keep]


def _ranges(functions: Functions, base: int) -> tuple[Places, Places, Places, Flags]:
    """(start, end, limit, gap) as offsets from `base`: rows hold up to the limit, and a gap begins there or not.

    Where two functions overlap, the one that begins later has the addresses from its beginning on.
    """
    starts = (functions.start - np.uint64(base)).astype(np.uint32)
    ends = (functions.end - np.uint64(base)).astype(np.uint32)
    order = np.lexsort((ends, starts))
    following = np.full(len(starts), 1 << 40)
    following[order[:-1]] = starts[order[1:]]
    return starts, ends, np.minimum(ends, following).astype(np.uint32), following > ends


def _based(offsets: Places, base: int) -> NDArray[np.uint64]:
    addresses = offsets.astype(np.uint64)
    addresses += np.uint64(base)
    return addresses


def _chunks(begin: Offsets, stop: Offsets, chosen: Ints) -> Iterator[Ints]:
    """`chosen` in parts whose programs lie within _CHUNK_BYTES, or are one program."""
    begins, stops, first = begin[chosen], stop[chosen], 0
    while first < len(chosen):
        last = max(first + 1, int(np.searchsorted(stops, begins[first] + _CHUNK_BYTES, side="right")))
        yield chosen[first:last]
        first = last
