"""Rules for code that is known but has none written: procedure linkage tables, and where a program begins.

GNU ld writes an FDE for each procedure linkage table, lld none. What an entry does to the stack is fixed by its form
(x86-64 psABI 1.0, section 5.2, and lld ELF/Arch/X86_64.cpp): a jump only, or a jump with a push of 8 bytes behind it,
and the first entry of a lazy table pushes 8 more. The entry point has no caller; in the dynamic linker of glibc and in
programs of musl nothing says so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bpfprof.elf.cfi.rules import NO_RULE_ID, RULE, CfaKind, FramePointerKind, Rules
from bpfprof.elf.image import ElfImage

_ENTRY_BYTES = 16
_JUMP, _ENDBR = b"\xff\x25", b"\xf3\x0f\x1e\xfa"
_PUSH_END, _ENDBR_PUSH_END = 11, 9  # where in an entry its push is done
_HEAD_PUSH_BYTES = 6
_SECTIONS = (".plt", ".plt.sec", ".plt.got", ".iplt")
_LIMIT_BYTES = 64 << 20
_ADDRESS_LIMIT = 1 << 47
_END_OF_STACK = 7
_ENTRY_CODE_BYTES = 128  # glibc 2.36: RTLD_START, sysdeps/x86_64/dl-machine.h; musl: arch/x86_64/crt_arch.h
_SAME_FP = FramePointerKind.SAME


def unwritten_rules() -> Rules:
    """What unwritten_tables() refers to."""
    rules = np.zeros(8, RULE)
    rules[1]["cfa_kind"] = CfaKind.UNSUPPORTED
    for index, offset in ((2, 8), (3, 16), (4, 24)):
        rules[index] = (CfaKind.RSP, _SAME_FP, 0, 0, offset, 0, -8)
    for index, push_end in ((5, _PUSH_END), (6, _ENDBR_PUSH_END)):
        rules[index] = (CfaKind.PLT, _SAME_FP, 0, push_end, 8, 0, -8)
    rules[_END_OF_STACK]["cfa_kind"] = CfaKind.END_OF_STACK
    return rules


def unwritten_tables(image: ElfImage, frames_address: NDArray[np.uint64]) -> list[list[tuple[int, int]]]:
    """Of each place that is understood its (address, rule) rows; the last is NO_RULE_ID at its end.

    `frames_address` are where rules are written, sorted: the entry point reaches to the next one at most.
    """
    tables = [rows for name in _SECTIONS if (rows := _rows(image, name))]
    if 0 < image.entry < _ADDRESS_LIMIT:
        following = int(np.searchsorted(frames_address, np.uint64(image.entry), side="right"))
        end = image.entry + _ENTRY_CODE_BYTES
        if following < len(frames_address):
            end = min(end, int(frames_address[following]))
        tables.append([(image.entry, _END_OF_STACK), (end, NO_RULE_ID)])
    return tables


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
