"""Where a file holds CPython's C evaluation function: an `ElfImage` in, sorted ranges of ELF addresses out.

The function is `_PyEval_EvalFrameDefault` (PEP 523). A compiler may split it: names with a suffix (`.cold`, `.part.0`,
...) are its pieces, and where a file has lost those names the piece that lies elsewhere is found by how it is reached.
A CPython 3.14 built with tail calls has a function for each instruction besides, `_TAIL_CALL_*`: `TARGET` in
Python/ceval_macros.h (v3.14.0). Those are called from the function itself, which stays on the stack below them: it has
a local frame that others point to (`entry`, Python/ceval.c), so its own call cannot be a tail call.
"""

from __future__ import annotations

import re

import numpy as np

from bpfprof.array_types import NDArray
from bpfprof.dataclass import dataclass
from bpfprof.elf.cfi.rules import NO_RULE_ID, UNSUPPORTED_ID, CallFrames, CfaKind
from bpfprof.elf.image import EM_X86_64, PF_X, ElfError, ElfImage
from bpfprof.elf.symbols.reader import read_symbols
from bpfprof.elf.symbols.table import SymbolTable

Addresses = NDArray[np.uint64]

EVAL_FUNCTION = "_PyEval_EvalFrameDefault"
_HANDLER = "_TAIL_CALL_"
_SPLIT = re.compile(r"\.(?:cold|part|warm)\b")  # gcc, clang, BOLT
_CODE_LIMIT_BYTES = 1 << 20  # the largest seen has 55 KiB
_DATA_LIMIT_BYTES = 32 << 20  # of all segments, and of the relocations once for each
_NAMES_LIMIT = 64 << 20  # characters
_NAMES_AT_ONCE = 1024
_RELOCATION = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])  # Elf64_Rela
_R_X86_64_RELATIVE = 8
_RETURN_ADDRESS_BYTES = 8


@dataclass(frozen=True)
class EvalRanges:
    """`starts` and `ends` (<u8) are sorted and apart; empty when the file has no evaluation function.

    `is_handler` tells which are `_TAIL_CALL_*`: a frame there is part of the call that the next frame is in.
    """

    starts: Addresses
    ends: Addresses
    is_handler: NDArray[np.bool_]

    def contains(self, addresses: Addresses) -> NDArray[np.bool_]:
        """Whether each ELF address is in the function, in a piece of it or in a handler."""
        return self._index(addresses) >= 0

    def stands_for_run(self, addresses: Addresses) -> NDArray[np.bool_]:
        """Whether a frame at each ELF address is one call of the function; a handler's frame is not."""
        index = self._index(addresses)
        found = index >= 0
        found[found] = ~self.is_handler[index[found]]
        return found

    def _index(self, addresses: Addresses) -> NDArray[np.int64]:
        if not len(self.starts):
            return np.full(len(addresses), -1, np.int64)
        index = np.searchsorted(self.starts, addresses, side="right") - 1
        return np.where((index >= 0) & (addresses < self.ends[index]), index, -1)


def eval_ranges(image: ElfImage, symbols: SymbolTable | None = None, frames: CallFrames | None = None) -> EvalRanges:
    """`symbols` may know more than the file (a debug file); `frames` are those of `image`, read here when needed.

    Never fails: what cannot be read is not found.
    """
    function = image.find_symbol(EVAL_FUNCTION)
    if symbols is None and function is None:  # of nearly every file
        return NO_RANGES
    symbols = read_symbols(image) if symbols is None else symbols
    pieces: list[tuple[int, int, bool]] = []
    is_split, room = False, _NAMES_LIMIT
    for first in range(0, len(symbols), _NAMES_AT_ONCE):
        names = symbols.names(np.arange(first, min(first + _NAMES_AT_ONCE, len(symbols))))
        pieces += [
            (int(symbols.starts[index]), int(symbols.ends[index]), name.startswith(_HANDLER))
            for index, name in enumerate(names, first)
            if name == EVAL_FUNCTION or name.startswith((EVAL_FUNCTION + ".", _HANDLER))
        ]
        is_split = is_split or any(map(_SPLIT.search, names))
        room -= sum(map(len, names))
        if room < 0:
            break
    if function is not None and function.size:
        pieces.append((function.address, function.address + function.size, False))
    if function is not None and image.machine == EM_X86_64 and not is_split:
        pieces += _unnamed_pieces(image, function.address, function.size, frames)
    return _ranges(pieces)


def _ranges(pieces: list[tuple[int, int, bool]]) -> EvalRanges:
    """Sorted; what overlaps becomes one."""
    merged: list[tuple[int, int, bool]] = []
    for start, end, is_handler in sorted(pieces):
        end = min(end, (1 << 64) - 1)
        if merged and start < merged[-1][1]:
            before = merged[-1]
            merged[-1] = (before[0], max(before[1], end), before[2] and is_handler)
        elif start < end:
            merged.append((start, end, is_handler))
    return EvalRanges(
        np.array([start for start, _, _ in merged], np.uint64),
        np.array([end for _, end, _ in merged], np.uint64),
        np.array([is_handler for _, _, is_handler in merged], np.bool_),
    )


NO_RANGES = _ranges([])


def _unnamed_pieces(image: ElfImage, address: int, size: int, frames: CallFrames | None) -> list[tuple[int, int, bool]]:
    """Other FDEs that the function goes on in; with a symbol without a size, the function's own FDE too."""
    try:
        if frames is None:
            from bpfprof.elf.cfi.tables import read_call_frames  # it takes long to import, and is seldom needed

            frames = read_call_frames(image)
    except ElfError:
        return []
    start, end = np.uint64(address), np.uint64(min(address + size, (1 << 64) - 1))
    found = []
    if not size:
        own = frames.function_at(np.array([start]))[0]
        if own < 0:
            return []
        end = frames.function_ends[own]
        found.append((address, int(end), False))
    code = image.read(address, int(end - start)) if end - start <= _CODE_LIMIT_BYTES else None
    if code is None:
        return found
    sources, targets = _jumps(code, start)
    targets = np.concatenate((targets, _table_entries(image, start, end)))
    # The rules at a jump hold at its target as well. A table does not say where it is used.
    body = frames.rule[slice(*np.searchsorted(frames.address, np.array([start, end])))]
    allowed = [np.array([rule]) for rule in frames.rule_at(sources).tolist()]
    allowed += [np.unique(body)] * (len(targets) - len(sources))
    indices = frames.function_at(targets)
    outside = (indices >= 0) & ((targets < start) | (targets >= end))
    pieces = set()
    rules = frames.rule_at(targets)
    for position in np.flatnonzero(outside).tolist():
        index, rule = indices[position], rules[position]
        if rule in allowed[position] and _begins_inside_function(frames, index):
            pieces.add((int(frames.function_starts[index]), int(frames.function_ends[index]), False))
    return found + sorted(pieces)


def _jumps(code: bytes, start: np.uint64) -> tuple[Addresses, Addresses]:
    """Where jmp rel32 and jcc rel32 are and lead, with some false ones: every byte is tried as an opcode.

    E9 and 0F 80 to 0F 8F: Intel SDM volume 2, "JMP" and "Jcc" (December 2023).
    """
    data = np.frombuffer(code, np.uint8)
    if len(data) < 6:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    near = np.flatnonzero(data[:-4] == 0xE9)
    conditional = np.flatnonzero((data[:-5] == 0x0F) & (data[1:-4] & 0xF0 == 0x80))
    at, operand = np.concatenate((near, conditional)), np.concatenate((near + 1, conditional + 2))
    distance = data[operand[:, None] + np.arange(4)].view("<i4").ravel().astype(np.int64)
    return start + at.astype(np.uint64), start + (operand + 4 + distance).astype(np.uint64)


def _table_entries(image: ElfImage, start: np.uint64, end: np.uint64) -> Addresses:
    """Addresses outside the function that stand in data beside one inside it.

    With computed gotos the labels of all instructions make one table, `opcode_targets` (Python/ceval.c, v3.7 to 3.14).
    """
    found = [np.zeros(0, np.uint64)]
    room = _DATA_LIMIT_BYTES
    relocations = _relative_relocations(image, room)
    for segment in image.segments:
        size = segment.file_size & ~7
        if segment.flags & PF_X or not 0 < size <= room:
            continue
        room -= size + relocations.nbytes
        data = image.read(segment.address, size)
        if data is None:
            continue
        words = np.frombuffer(data, "<u8").copy()
        place = (relocations["offset"] - np.uint64(segment.address)) // np.uint64(8)
        inside = (relocations["offset"] >= segment.address) & (place < len(words))
        words[place[inside]] = relocations["addend"][inside].astype(np.uint64)
        is_label = (words >= start) & (words < end)
        beside = np.zeros(len(words), np.bool_)
        beside[1:] |= is_label[:-1]
        beside[:-1] |= is_label[1:]
        found.append(np.unique(words[beside & ~is_label]))
    return np.concatenate(found)


def _relative_relocations(image: ElfImage, limit: int) -> NDArray[np.void]:
    section = image.section(".rela.dyn")
    data = image.read_at(section.offset, section.size // 24 * 24) if section and section.size <= limit else None
    entries: NDArray[np.void] = np.frombuffer(data or b"", _RELOCATION)
    relative: NDArray[np.void] = entries[entries["info"] == _R_X86_64_RELATIVE]
    return relative


def _begins_inside_function(frames: CallFrames, index: int) -> bool:
    """Whether more than a return address is on the stack where this FDE begins, which is so in no whole function."""
    rule = int(frames.rule_at(frames.function_starts[index : index + 1])[0])
    if rule in (NO_RULE_ID, UNSUPPORTED_ID):
        return False
    first = frames.rules[rule]
    return not (first["cfa_kind"] == CfaKind.RSP and first["cfa_offset"] == _RETURN_ADDRESS_BYTES)
