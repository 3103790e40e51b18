"""Rules for assembly that moves its stack without saying so: a file's rows in, the same with those of such code out.

Two kinds are looked at: functions with a symbol but without an FDE (OpenBLAS, libgmp), and functions whose FDE says
that nothing ever moves (`.cfi_startproc`, `.cfi_endproc` and nothing between) but whose code does (__mpn_addmul_1 of
glibc). What their instructions do to the stack is followed from the first one on; a function that cannot be followed
keeps what it had.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bpfprof.elf.asm.effects import Instructions, effects
from bpfprof.elf.asm.lengths import PADDING_BYTES, lengths
from bpfprof.elf.asm.stack_tracking import CannotTell, RuleFields, Tracker
from bpfprof.elf.cfi.instructions import mark
from bpfprof.elf.cfi.rules import NO_RULE_ID, RULE, RULE_LIMIT, CfaKind, Rules
from bpfprof.elf.image import ElfImage
from bpfprof.elf.leb128 import Bytes, Ints
from bpfprof.elf.symbols.reader import read_symbols

# What one file may cost. Debian's OpenBLAS has 11 MB of assembly for every processor, the one of numpy 2.9 MB.
_CODE_LIMIT_BYTES = 11 << 20
_INSTRUCTION_LIMIT = 5 << 19
_STEP_LIMIT = 250_000  # of 1 us
_FUNCTION_STEP_LIMIT = 30_000
_LONGEST_BYTES = 256 << 10
_BATCH_BYTES = 256 << 10  # decoded together: some 10 MB of arrays
_FUNCTION_LIMIT = 8192
_ROW_LIMIT = 500_000  # with more, there is no room for symbols; OpenBLAS has 360,000

_SHORTEST_BYTES = 16
_GAP_BYTES = 512  # without one that large, symbols are not read; what starts a program leaves 200 bytes in each file
_WRITTEN_BYTES = 64  # the shortest function with an FDE that is looked at
_WRITTEN_LIMIT = 4096  # of them, the largest
# push at the beginning; sub or and with rsp somewhere
_MOVES_STACK = re.compile(rb"\A(?:\xf3\x0f\x1e\xfa)?(?:\x41)?[\x50-\x57]|\x48[\x81\x83][\xec\xe4]", re.DOTALL)
_NEVER_MOVED: RuleFields = (int(CfaKind.RSP), 0, 0, 0, 8, 0, -8)

Addresses = NDArray[np.uint64]
RuleIds = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one function, ascending from its start; None is a place where what was known stays."""

    start: int
    end: int
    rows: list[tuple[int, RuleFields | None]]


@dataclass(frozen=True, slots=True)
class Found:
    """Rows and rules as in CallFrames, functions that had none before, and how many of them could not be followed."""

    address: Addresses
    rule: RuleIds
    rules: Rules
    starts: Addresses
    ends: Addresses
    lost_count: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """Functions, [start, end), ascending and apart."""

    start: Ints
    end: Ints
    is_written: NDArray[np.bool_]  # has an FDE


def with_handwritten(
    image: ElfImage, address: Addresses, rule: RuleIds, rules: Rules, functions: tuple[Addresses, Addresses]
) -> Found:
    """`functions` are where FDEs begin and end, sorted by start. Never fails: bounded in time and memory."""
    written = _written_candidates(image, address, rule, rules, functions)
    bare = _unwritten_candidates(image, address, rule)
    start = np.concatenate((bare[0], written[0]))
    end = np.concatenate((bare[1], written[1]))
    order = np.argsort(start, kind="stable")
    is_written = order >= len(bare[0])
    candidates = Candidates(start[order], end[order], is_written)
    pieces = list(follow(image, candidates))
    known = {piece.start for piece in pieces}
    kept = ~candidates.is_written & np.isin(candidates.start, list(known)) if known else np.zeros(len(order), np.bool_)
    lost_count = int((~candidates.is_written).sum() - kept.sum())
    new = candidates.start[kept].astype(np.uint64), candidates.end[kept].astype(np.uint64)
    return Found(*_merged(address, rule, rules, pieces), *new, lost_count)


def _unwritten_candidates(image: ElfImage, address: Addresses, rule: RuleIds) -> tuple[Ints, Ints]:
    """Symbols in gaps between functions."""
    gaps = np.flatnonzero(rule[:-1] == NO_RULE_ID)
    none = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if not len(gaps) or int((address[gaps + 1] - address[gaps]).max()) < _GAP_BYTES or len(address) > _ROW_LIMIT:
        return none
    symbols = read_symbols(image)
    if not len(symbols):
        return none
    before = np.searchsorted(address, symbols.starts, side="right") - 1
    is_in = (before >= 0) & (before < len(address) - 1)
    before = np.where(is_in, before, 0)
    is_in &= (rule[before] == NO_RULE_ID) & (symbols.ends <= address[np.minimum(before + 1, len(address) - 1)])
    reach = np.maximum.accumulate(symbols.ends)
    is_in[1:] &= symbols.starts[1:] >= reach[:-1]
    start, end = symbols.starts[is_in].astype(np.int64), symbols.ends[is_in].astype(np.int64)
    fits = (end - start >= _SHORTEST_BYTES) & (end - start <= _LONGEST_BYTES)
    return start[fits][:_FUNCTION_LIMIT], end[fits][:_FUNCTION_LIMIT]


def _written_candidates(
    image: ElfImage, address: Addresses, rule: RuleIds, rules: Rules, functions: tuple[Addresses, Addresses]
) -> tuple[Ints, Ints]:
    """Functions with one row that says that nothing moves, and instructions that may move something."""
    starts, ends = functions
    plain = np.flatnonzero(rules == np.array(_NEVER_MOVED, RULE))
    first = np.searchsorted(address, starts, side="right") - 1
    last = np.searchsorted(address, ends, side="left") - 1
    size = (ends - starts).astype(np.int64)
    chosen = (first == last) & np.isin(rule[np.maximum(first, 0)], plain) & (size >= _WRITTEN_BYTES)
    chosen[1:] &= starts[1:] >= np.maximum.accumulate(ends)[:-1]
    chosen &= size <= _LONGEST_BYTES
    places = np.flatnonzero(chosen)
    if len(places) > _WRITTEN_LIMIT:
        places = np.sort(places[np.argsort(size[places], kind="stable")[-_WRITTEN_LIMIT:]])
    kept = [
        place
        for place, start, length in zip(places.tolist(), starts[places].tolist(), size[places].tolist(), strict=True)
        if _MOVES_STACK.search(image.read(start, length) or b"")
    ]
    return starts[kept].astype(np.int64), ends[kept].astype(np.int64)


def follow(image: ElfImage, candidates: Candidates) -> Iterator[Piece]:
    """Rows of those functions that can be followed to their end."""
    spent, steps = 0, 0
    for first, last in _batches(candidates.start, candidates.end):
        code, begin, end = bytearray(), [], []
        starts = candidates.start[first:last].tolist()
        for start, limit in zip(starts, candidates.end[first:last].tolist(), strict=True):
            begin.append(len(code))
            code += image.read(start, limit - start) or b""
            end.append(len(code))
        for number, tracker in _trackers(bytes(code), np.array(begin), np.array(end)):
            spent += tracker.instruction_count
            if spent > _INSTRUCTION_LIMIT or steps >= _STEP_LIMIT:
                return
            try:
                rows = tracker.rows(min(_FUNCTION_STEP_LIMIT, _STEP_LIMIT - steps))
            except CannotTell:
                continue
            finally:
                steps += tracker.steps
            bias = starts[number] - begin[number]
            piece_end = starts[number] + end[number] - begin[number]
            yield Piece(starts[number], piece_end, [(place + bias, fields) for place, fields in rows])


def _batches(start: Ints, end: Ints) -> Iterator[tuple[int, int]]:
    """Parts of up to _BATCH_BYTES, or one function, until the file has cost enough."""
    behind, first = np.cumsum(end - start), 0
    count = int(np.searchsorted(behind, _CODE_LIMIT_BYTES, side="right"))
    while first < count:
        before = int(behind[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(behind, before + _BATCH_BYTES, side="right")))
        yield first, min(last, count)
        first = last


def _trackers(content: bytes, begin: Ints, end: Ints) -> Iterator[tuple[int, Tracker]]:
    """Of each function whose instructions are all understood its number and what follows it."""
    padded = content + bytes(PADDING_BYTES)
    instructions, sound = decode(np.frombuffer(padded, np.uint8), begin, end)
    first = np.searchsorted(instructions.at, begin)
    last = np.searchsorted(instructions.at, end)
    for number in np.flatnonzero(sound & (last > first)).tolist():
        yield number, Tracker(padded, instructions, int(first[number]), int(last[number]))


def decode(code: Bytes, begin: Ints, end: Ints) -> tuple[Instructions, NDArray[np.bool_]]:
    """The instructions of the functions begin:end, one after another, and which functions are understood.

    `code` ends with PADDING_BYTES of zeros. Functions are ascending and touch one another.
    """
    decoded = lengths(code)
    following = np.arange(len(decoded.size), dtype=np.int32) + decoded.size
    following[decoded.size == 0] = len(code)  # beyond the end of any
    marks = np.zeros(len(code), np.uint8)
    cut_off, _ = mark(following, begin, end, marks)
    sound = ~np.isin(end, cut_off)
    at = np.flatnonzero(marks)
    return effects(code, decoded, at[decoded.size[at] > 0]), sound


def _merged(address: Addresses, rule: RuleIds, rules: Rules, pieces: list[Piece]) -> tuple[Addresses, RuleIds, Rules]:
    """The rows of a file with those of the pieces in their places."""
    if not pieces:
        return address, rule, rules
    ids: dict[RuleFields, int] = {}
    new_rules: list[RuleFields] = []
    for fields in {fields for piece in pieces for _, fields in piece.rows if fields is not None}:
        same = np.flatnonzero(rules == np.array(fields, RULE))
        ids[fields] = int(same[0]) if len(same) else len(rules) + len(new_rules)
        new_rules += [] if len(same) else [fields]
    if len(rules) + len(new_rules) > RULE_LIMIT:
        return address, rule, rules
    begins, ends = (np.array(values, np.uint64) for values in zip(*((it.start, it.end) for it in pieces), strict=True))
    old_at_begin, old_at_end = _rule_at(address, rule, begins), _rule_at(address, rule, ends)
    new_address, new_rule = [], []
    for piece, before, behind in zip(pieces, old_at_begin.tolist(), old_at_end.tolist(), strict=True):
        new_address += [place for place, _ in piece.rows] + [piece.end]
        new_rule += [before if fields is None else ids[fields] for _, fields in piece.rows] + [behind]
    inside = np.searchsorted(begins, address, side="right") - 1
    stays = (inside < 0) | (address >= ends[np.maximum(inside, 0)])
    all_address = np.concatenate((address[stays], np.array(new_address, np.uint64)))
    all_rule = np.concatenate((rule[stays], np.array(new_rule, np.uint16)))
    order = np.argsort(all_address, kind="stable")
    all_address, all_rule = all_address[order], all_rule[order]
    # Where one piece begins at the end of another, the row that says more is the later one.
    keep = np.ones(len(order), np.bool_)
    keep[:-1] = all_address[1:] != all_address[:-1]
    all_address, all_rule = all_address[keep], all_rule[keep]
    keep = np.ones(len(all_rule), np.bool_)
    keep[1:] = all_rule[1:] != all_rule[:-1]
    return all_address[keep], all_rule[keep], np.concatenate((rules, np.array(new_rules, RULE)))


def _rule_at(address: Addresses, rule: RuleIds, wanted: Addresses) -> RuleIds:
    found = np.searchsorted(address, wanted, side="right") - 1
    return np.where(found >= 0, rule[np.maximum(found, 0)], NO_RULE_ID).astype(np.uint16)
