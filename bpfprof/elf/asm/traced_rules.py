"""Rules for assembly that moves its stack without saying so: a file's rows in, the same with those of such code out.

Two kinds are looked at: functions with a symbol but without an FDE (OpenBLAS, libgmp), and functions whose FDE says
that nothing ever moves (`.cfi_startproc`, `.cfi_endproc` and nothing between) but whose code does (__mpn_addmul_1 of
glibc). What their instructions do to the stack is followed from the first one on; a function that cannot be followed
keeps what it had.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from bpfprof.array_types import NDArray
from bpfprof.dataclass import dataclass
from bpfprof.elf.asm.effects import Instructions, effects
from bpfprof.elf.asm.extent import functions_in
from bpfprof.elf.asm.lengths import PADDING_BYTES, lengths
from bpfprof.elf.asm.stack_tracking import CannotTell, Tracker
from bpfprof.elf.cfi.rules import (
    NO_RULE_ID,
    RULE,
    UNSUPPORTED_FIELDS,
    UNSUPPORTED_ID,
    CallFrames,
    CfaKind,
    Reason,
    RuleFields,
    rows_in_order,
    rules_array,
)
from bpfprof.elf.effort import USUAL, Effort
from bpfprof.elf.image import ElfImage
from bpfprof.elf.leb128 import Bytes, Ints
from bpfprof.elf.symbols.reader import read_symbols
from bpfprof.elf.symbols.table import SymbolTable

_NAMELESS_LIMIT_BYTES = 1 << 20  # onnxruntime has 0.24 MB
_FUNCTION_STEP_LIMIT = 30_000
_LONGEST_BYTES = 512 << 10  # oneDNN's matrix product has 274 KB
_BATCH_BYTES = 256 << 10  # decoded together: some 10 MB of arrays

# Of files that are made of what a just-in-time compiler left in memory: LLVM writes no FDE for a function that cannot
# throw, so any may be without.
JIT_SECTION = ".jit"
SHORTEST_BYTES = 16
_GAP_BYTES = 512  # without one that large, symbols are not read; what starts a program leaves 200 bytes in each file
_WRITTEN_BYTES = 64  # the shortest function with an FDE that is looked at
_WRITTEN_LIMIT = 4096  # of them, the largest
# push at the beginning; sub or and with rsp somewhere
_MOVES_STACK = re.compile(rb"\A(?:\xf3\x0f\x1e\xfa)?(?:\x41)?[\x50-\x57]|\x48[\x81\x83][\xec\xe4]", re.DOTALL)
_NEVER_MOVED: RuleFields = (int(CfaKind.RSP), 0, 0, 0, 8, 0, -8)

_FEW_LANES = 48  # with fewer, following them one by one is quicker than together


@dataclass(frozen=True)
class Traced:
    """A function, [start, end), and its rules, ascending from its start; None is a place where nothing comes by."""

    start: int
    end: int
    rows: list[tuple[int, RuleFields | None]]


def traced_rules(image: ElfImage, frames: CallFrames, effort: Effort = USUAL) -> CallFrames:
    """The rules that were found, with the functions that have none in `frames`.

    Never fails: bounded in time and memory. Where all would take more than this effort none is followed.
    """
    bare, written = _unwritten_candidates(image, frames), _written_candidates(image, frames)
    start, end = np.concatenate((bare, written), axis=1)
    if len(start) > effort.functions or int((end - start).sum()) > effort.code_bytes:
        return CallFrames().with_lost(Reason.NOT_FOLLOWED, len(start))
    order = np.argsort(start, kind="stable")
    traced = list(follow(image, start[order], end[order], effort))
    kept = np.isin(bare[0], [function.start for function in traced])
    new = bare[:, kept].astype(np.uint64)
    found = _frames_of(traced, new)
    lost_count = bare.shape[1] - new.shape[1]
    return found.with_lost(Reason.NOT_FOLLOWED, lost_count) if lost_count else found


def written_rules(image: ElfImage, frames: CallFrames) -> CallFrames:
    """Of functions in `frames` that say that nothing moves, although it does, the rules of their instructions."""
    return _frames_of(list(follow(image, *_written_candidates(image, frames))), np.zeros((2, 0), np.uint64))


def traced_at(image: ElfImage, symbols: SymbolTable, addresses: Ints, gaps: Ints) -> tuple[CallFrames, Ints]:
    """(rules of functions that hold these addresses, ascending; where they were looked for, 2 x N)

    gaps, 2 x N: around each address what no function with rules of its own has. Bounded as traced_rules() is.
    """
    starts, ends = symbols.starts.astype(np.int64), symbols.ends.astype(np.int64)
    looked, chosen = list[tuple[int, int]](), dict[int, int]()
    for address, (low, high) in zip(addresses.tolist(), gaps.T.tolist()):
        place = int(np.searchsorted(starts, address, side="right")) - 1
        if place >= 0 and address < ends[place]:
            start, end = int(starts[place]), int(ends[place])
            if low <= start and end <= high and SHORTEST_BYTES <= end - start <= _LONGEST_BYTES:
                chosen[start] = end
            looked.append((max(start, low), min(end, high)))
            continue
        low = max(low, int(ends[place]) if place >= 0 else 0)
        high = min(high, int(starts[place + 1]) if place + 1 < len(starts) else high)
        looked.append((low, high))
        if _GAP_BYTES <= high - low <= _NAMELESS_LIMIT_BYTES:
            chosen |= dict(functions_in(image.read(low, high - low) or b"", low))
    ranges = np.array(sorted(chosen.items()), np.int64).reshape(-1, 2).T
    ranges = ranges[:, np.append(ranges[1, :-1] <= ranges[0, 1:], True)[: ranges.shape[1]]]
    traced = list(follow(image, *ranges))
    functions = np.array([[each.start, each.end] for each in traced], np.uint64).reshape(-1, 2).T
    return _frames_of(traced, functions), np.array(looked, np.int64).reshape(-1, 2).T


def _frames_of(traced: list[Traced], functions: NDArray[np.uint64]) -> CallFrames:
    """Their rules; functions: starts and ends of those that had none."""
    ids: dict[RuleFields | None, int] = {None: NO_RULE_ID, UNSUPPORTED_FIELDS: UNSUPPORTED_ID}
    address, rule = [], []
    for function in traced:
        address += [place for place, _ in function.rows] + [function.end]
        rule += [ids.setdefault(fields, len(ids)) for _, fields in function.rows] + [NO_RULE_ID]
    return CallFrames(
        *rows_in_order(np.array(address, np.uint64), np.array(rule, np.uint16)),
        rules_array(fields or (0,) * 7 for fields in ids),
        functions[0],
        functions[1],
        functions.shape[1],
    )


def _unwritten_candidates(image: ElfImage, frames: CallFrames) -> Ints:
    """Starts and ends of symbols in gaps between functions."""
    address, rule, shortest_gap = frames.address, frames.rule, _GAP_BYTES
    made = image.section(JIT_SECTION)
    if made is not None:
        edges = np.array([made.address, made.address + made.size], np.uint64)
        address = np.concatenate((edges[:1], address, edges[1:]))
        rule, shortest_gap = np.concatenate(([NO_RULE_ID], rule, [NO_RULE_ID])), SHORTEST_BYTES
    gaps = np.flatnonzero(rule[:-1] == NO_RULE_ID)
    none = np.zeros((2, 0), np.int64)
    if not len(gaps) or int((address[gaps + 1] - address[gaps]).max()) < shortest_gap:
        return none
    symbols = read_symbols(image)
    following = np.searchsorted(address, symbols.starts, side="right")
    is_in = (following > 0) & (following < len(address)) & (frames.rule_at(symbols.starts) == NO_RULE_ID)
    is_in &= symbols.ends <= address[np.minimum(following, len(address) - 1)]
    reach = np.maximum.accumulate(symbols.ends)
    is_in[1:] &= symbols.starts[1:] >= reach[:-1]
    size = symbols.ends - symbols.starts
    is_in &= (size >= SHORTEST_BYTES) & (size <= _LONGEST_BYTES)
    named = np.array([symbols.starts[is_in], symbols.ends[is_in]]).astype(np.int64)
    nameless = _nameless(image, np.array([address[gaps], address[gaps + 1]]).astype(np.int64), named)
    both = np.concatenate((named, nameless), axis=1)
    return both[:, np.argsort(both[0], kind="stable")][:, : USUAL.functions + 1]


def _nameless(image: ElfImage, gaps: Ints, named: Ints) -> Ints:
    """Starts and ends of functions in what is left of gaps, as in a file without symbols (onnxruntime's)."""
    edges = np.concatenate((gaps.ravel("F"), *named))
    # Ranges between neighbouring borders that are in a gap and in no function.
    order = np.sort(edges)
    start, end = order[:-1], order[1:]

    def is_within(ranges: Ints) -> NDArray[np.bool_]:
        place = np.searchsorted(ranges[0], start, side="right") - 1
        return np.asarray((place >= 0) & (end <= ranges[1][np.maximum(place, 0)])) if len(ranges[0]) else start < 0

    chosen = is_within(gaps) & ~is_within(named) & (end - start >= _GAP_BYTES)
    chosen &= np.cumsum((end - start) * chosen) <= _NAMELESS_LIMIT_BYTES
    found = [
        function
        for at, size in zip(start[chosen].tolist(), (end - start)[chosen].tolist())
        for function in functions_in(image.read(at, size) or b"", at)
    ]
    return np.array(found, np.int64).reshape(-1, 2).T


def _written_candidates(image: ElfImage, frames: CallFrames) -> Ints:
    """Starts and ends of functions with a single row, that nothing moves, and instructions that may move something."""
    starts, ends = frames.function_starts, frames.function_ends
    plain = np.flatnonzero(frames.rules == np.array(_NEVER_MOVED, RULE))
    first = np.searchsorted(frames.address, starts, side="right") - 1
    last = np.searchsorted(frames.address, ends, side="left") - 1
    size = (ends - starts).astype(np.int64)
    chosen = (first == last) & np.isin(frames.rule[np.maximum(first, 0)], plain) & (size >= _WRITTEN_BYTES)
    chosen[1:] &= starts[1:] >= np.maximum.accumulate(ends)[:-1]
    chosen &= size <= _LONGEST_BYTES
    places = np.flatnonzero(chosen)
    if len(places) > _WRITTEN_LIMIT:
        places = np.sort(places[np.argsort(size[places], kind="stable")[-_WRITTEN_LIMIT:]])
    kept = [
        place
        for place, start, length in zip(places.tolist(), starts[places].tolist(), size[places].tolist())
        if _MOVES_STACK.search(image.read(start, length) or b"")
    ]
    return np.array([starts[kept], ends[kept]]).astype(np.int64)


def follow(image: ElfImage, start: Ints, end: Ints, effort: Effort = USUAL) -> Iterator[Traced]:
    """Those functions, ascending and apart, that can be followed to their end."""
    spent, steps = 0, 0
    for first, last in _batches(start, end, effort.code_bytes):
        starts = start[first:last].tolist()
        codes = [image.read(at, limit - at) or b"" for at, limit in zip(starts, end[first:last].tolist())]
        behind = np.cumsum([len(code) for code in codes])
        begin = np.append(0, behind[:-1])
        for number, tracker in _trackers(b"".join(codes), begin, behind):
            spent += tracker.instruction_count
            if spent > effort.instructions or steps >= effort.steps:
                return
            try:
                rows = tracker.rows(min(_FUNCTION_STEP_LIMIT, effort.steps - steps))
            except CannotTell:
                continue
            finally:
                steps += tracker.steps
            bias = starts[number] - int(begin[number])
            function_end = starts[number] + len(codes[number])
            yield Traced(starts[number], function_end, [(place + bias, fields) for place, fields in rows])


def _batches(start: Ints, end: Ints, code_bytes: int) -> Iterator[tuple[int, int]]:
    """Parts of up to _BATCH_BYTES, or one function, until the file has cost enough."""
    behind, first = np.cumsum(end - start), 0
    count = int(np.searchsorted(behind, code_bytes, side="right"))
    while first < count:
        before = int(behind[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(behind, before + _BATCH_BYTES, side="right")))
        yield first, min(last, count)
        first = last


def _trackers(content: bytes, begin: Ints, end: Ints) -> Iterator[tuple[int, Tracker]]:
    """For each function whose instructions are all understood its number and what follows it."""
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
    marks, cut_off = mark(following, begin, end)
    sound = ~np.isin(end, cut_off)
    at = np.flatnonzero(marks)
    return effects(code, decoded, at[decoded.size[at] > 0]), sound


def mark(following: NDArray[np.int32], begin: Ints, end: Ints) -> tuple[Bytes, Ints]:
    """1 where an instruction of the functions begin:end begins, and the ends of those whose last one goes on behind it.

    `following` is where the next one would be if one began at each place.
    """
    marks = np.zeros(len(following), np.uint8)
    some = begin < end
    position, stop, cut_off = begin[some], end[some], [np.zeros(0, np.int64)]
    while len(position) > _FEW_LANES:
        marks[position] = 1
        position = following[position].astype(np.int64)
        inside = position < stop
        if not inside.all():
            cut_off.append(stop[position > stop])
            position, stop = position[inside], stop[inside]
    next_of, found = following.data, []
    for at, last in zip(position.tolist(), stop.tolist()):
        while at < last:
            found.append(at)
            at = next_of[at]
        if at > last:
            cut_off.append(np.array([last]))
    marks[np.array(found, np.int64)] = 1
    return marks, np.concatenate(cut_off)
