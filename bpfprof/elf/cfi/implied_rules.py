"""Rules for code that is known but has none written: linkage tables, where a program begins, and V8's builtins.

GNU ld writes an FDE for each procedure linkage table, lld none. What an entry does to the stack is fixed by its form
(x86-64 psABI 1.0, section 5.2, and lld ELF/Arch/X86_64.cpp): a jump only, or a jump with a push of 8 bytes behind it,
and the first entry of a lazy table pushes 8 more. The entry point has no caller; in the dynamic linker of glibc and in
programs of musl nothing says so. V8's builtins, which its own compiler writes into its library, have a frame pointer or
run in the frame of who jumped to them: src/execution/frame-constants.h (v11.3).
"""

from __future__ import annotations

import numpy as np

from bpfprof.elf.cfi.rules import (
    NO_RULE_ID,
    UNSUPPORTED_FIELDS,
    CallFrames,
    CfaKind,
    FramePointerKind,
    rows_in_order,
    rules_array,
)
from bpfprof.elf.image import ElfImage
from bpfprof.elf.leb128 import Ints
from bpfprof.elf.symbols.reader import read_symbols
from bpfprof.elf.symbols.table import SymbolTable

_ENTRY_BYTES = 16
_JUMP, _ENDBR = b"\xff\x25", b"\xf3\x0f\x1e\xfa"
_PUSH_END, _ENDBR_PUSH_END = 11, 9  # where in an entry its push is done
_HEAD_PUSH_BYTES = 6
_SECTIONS = (".plt", ".plt.sec", ".plt.got", ".iplt")
_LIMIT_BYTES = 64 << 20
_ADDRESS_LIMIT = 1 << 47
_END_OF_STACK = 7
_ENTRY_CODE_BYTES = 128  # glibc 2.36: RTLD_START, sysdeps/x86_64/dl-machine.h; musl: arch/x86_64/crt_arch.h
_SAME_FP = int(FramePointerKind.SAME)
_BUILTIN, _A_BUILTIN = "Builtins_", "Builtins_InterpreterEntryTrampoline"
_BUILTIN_LIMIT = 8192  # v11.3 has 2,182


# The rules below by number; the first two are those of every file.
_RULES = rules_array(
    [
        (0,) * 7,
        UNSUPPORTED_FIELDS,
        *((int(CfaKind.RSP), _SAME_FP, 0, 0, offset, 0, -8) for offset in (8, 16, 24)),
        *((int(CfaKind.PLT), _SAME_FP, 0, push_end, 8, 0, -8) for push_end in (_PUSH_END, _ENDBR_PUSH_END)),
        (int(CfaKind.END_OF_STACK), 0, 0, 0, 0, 0, 0),
        (int(CfaKind.RBP), int(FramePointerKind.AT_CFA), 0, 0, 16, -16, -8),
    ]
)
_KEEPS_FRAME_POINTER = 8


def implied_rules(image: ElfImage, frames: CallFrames, code: tuple[int, int]) -> CallFrames:
    """Rules of all that is understood and in the `code`; each range counts as a function where `frames` has no rule."""
    tables = [rows for name in _SECTIONS if (rows := _rows(image, name))]
    if 0 < image.entry < _ADDRESS_LIMIT:
        following = int(np.searchsorted(frames.address, np.uint64(image.entry), side="right"))
        end = image.entry + _ENTRY_CODE_BYTES
        if following < len(frames.address):
            end = min(end, int(frames.address[following]))
        tables.append([(image.entry, _END_OF_STACK), (end, NO_RULE_ID)])
    tables = sorted(rows for rows in tables if code[0] <= rows[0][0] < rows[-1][0] <= code[1] and _is_gap(frames, rows))
    rows = [row for table in tables for row in table]
    return CallFrames(
        *rows_in_order(np.array([at for at, _ in rows], np.uint64), np.array([rule for _, rule in rows], np.uint16)),
        _RULES,
        np.array([table[0][0] for table in tables], np.uint64),
        np.array([table[-1][0] for table in tables], np.uint64),
        len(tables),
    )


def linkage_addresses(image: ElfImage) -> list[int]:
    """Of what implied_rules() looks at where there is anything: it may be told of only what is known at these."""
    found = [image.entry]
    for name in _SECTIONS:
        section = image.section(name)
        if section is not None:
            found += [section.address, section.address + min(section.size, _ENTRY_BYTES)]
    return [address for address in found if 0 < address < _ADDRESS_LIMIT]


def builtin_rules(image: ElfImage) -> CallFrames:
    """Those of V8's builtins, which lie side by side; none where they have no names."""
    known = image.find_symbol(_A_BUILTIN)
    return CallFrames() if known is None else builtins_at(read_symbols(image), np.array([known.address], np.int64))


def builtins_at(symbols: SymbolTable, addresses: Ints) -> CallFrames:
    """The same where one of these addresses is in one; symbols: of the file."""
    places = symbols.find(addresses.astype(np.uint64))
    found = next((at for at, name in zip(places.tolist(), symbols.names(places)) if name.startswith(_BUILTIN)), -1)
    if found < 0:
        return CallFrames()
    edges: list[int] = []
    for step in (-1, 1):
        place = found
        for _ in range(_BUILTIN_LIMIT):
            if not 0 <= place < len(symbols) or not symbols.names(np.array([place]))[0].startswith(_BUILTIN):
                break
            place += step
        edges.append(place - step)
    start, end = symbols.starts[edges[0]], symbols.ends[edges[1]]
    rows = np.array([start, end], np.uint64), np.array([_KEEPS_FRAME_POINTER, NO_RULE_ID], np.uint16)
    return CallFrames(*rows, _RULES, rows[0][:1], rows[0][1:], 1)


def _is_gap(frames: CallFrames, rows: list[tuple[int, int]]) -> bool:
    """Whether nothing is known between the first and the last of these rows."""
    first, last = np.searchsorted(frames.address, np.array([rows[0][0] + 1, rows[-1][0]], np.uint64))
    return bool(first >= last) and int(frames.rule_at(np.array([rows[0][0]], np.uint64))[0]) == NO_RULE_ID


def _rows(image: ElfImage, name: str) -> list[tuple[int, int]]:
    section = image.section(name)
    if section is None or not _ENTRY_BYTES <= section.size <= _LIMIT_BYTES:
        return []
    if not 0 < section.address < _ADDRESS_LIMIT:
        return []
    begin, end = section.address, section.address + section.size
    if name in (".plt.sec", ".plt.got"):
        return [(begin, 2), (end, NO_RULE_ID)]
    first = begin if name == ".iplt" else begin + _ENTRY_BYTES
    code = image.read(first, _ENTRY_BYTES) or b""
    if code[:2] == _JUMP and code[6:7] == b"\x68":
        rule = 5
    elif code[:4] == _ENDBR and code[4:5] == b"\x68":
        rule = 6
    else:
        return []
    head = [] if first == begin else [(begin, 3), (begin + _HEAD_PUSH_BYTES, 4)]
    return [*head, (first, rule), (end, NO_RULE_ID)]
