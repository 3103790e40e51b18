"""Code by which CPython shows its functions to perf (`-X perf`): memory of a process in, its unwind rules out.

Each Python function gets a copy of a few instructions of its own, which call the evaluation function. Until 3.13 these
keep no frame pointer. They fill whole arenas: new_code_arena(), Python/perf_trampoline.c (v3.12.0 to v3.15.0a1).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from bpfprof.code.jit_objects import JitObject, made_image
from bpfprof.proc.memory import ProcessMemory

_LIMIT_BYTES = 1 << 20  # of arenas side by side, which the kernel makes one mapping of; each has 64 KiB
_LONGEST_BYTES = 16
_ENDBR64 = rb"(?P<mark>\xf3\x0f\x1e\xfa)?"
# Instructions, and the DWARF call frame instructions that go with them: Python/asm_trampoline.S.
_TEMPLATES = (
    (  # v3.12.0, v3.13.0: sub $8, %rsp; call *%rcx; add $8, %rsp; ret
        re.compile(_ENDBR64 + rb"\x48\x83\xec\x08\xff\xd1\x48\x83\xc4\x08\xc3", re.DOTALL),
        ((4, b"\x0e\x10"), (6, b"\x0e\x08")),
    ),
    (  # v3.14.0: push %rbp; mov %rsp, %rbp; call *%rcx; pop %rbp; ret
        re.compile(_ENDBR64 + rb"\x55\x48\x89\xe5\xff\xd1\x5d\xc3", re.DOTALL),
        ((1, b"\x0e\x10\x86\x02"), (3, b"\x0d\x06"), (3, b"\x0c\x07\x08\xc6")),
    ),
)
# DWARF 4, 6.4.1: version 1, "zR", alignment of code 1 and of data -8, return address in column 16, pointers relative
# and of 4 bytes; at first the CFA is rsp + 8, below which the return address is.
_CIE_BODY = bytes.fromhex("00000000 01 7a5200 01 78 10 01 1b 0c0708 9001 00 00")
_CIE = struct.pack("<I", len(_CIE_BODY)) + _CIE_BODY


def call_frames(at: int, size: int, steps: Iterable[tuple[int, bytes]]) -> bytes:
    """A section .eh_frame that lies at `at`, with one entry, for the code from 0 to `size`.

    steps: (place, DWARF's instructions that hold from there on), ascending.
    """
    program, reached = [], 0
    for place, instructions in steps:
        program.append(b"\x04" + struct.pack("<I", place - reached) + instructions)  # DW_CFA_advance_loc4
        reached = place
    body = b"".join(program)
    body += bytes(-len(body) % 4 + 3)  # DW_CFA_nop
    begin = at + len(_CIE) + 8  # where the first pointer of the entry is
    fields = struct.pack("<IiIB", len(_CIE) + 4, -begin, size, 0)
    return _CIE + struct.pack("<I", len(fields) + len(body)) + fields + body + bytes(4)


def find_trampolines(memory: ProcessMemory, start: int, end: int) -> JitObject | None:
    """An executable mapping of memory as a file with rules, if it is such an arena."""
    head = memory.read(start, _LONGEST_BYTES)
    found = next((each for each in _TEMPLATES if head and each[0].match(head)), None)
    code = memory.read(start, min(end - start, _LIMIT_BYTES)) if found else None
    if found is None or code is None:
        return None
    frames = _call_frames(code, *found)
    return JitObject(start, start + len(code), start, made_image((0, code), (len(code), frames), b"", b""))


def _call_frames(code: bytes, template: re.Pattern[bytes], rules: tuple[tuple[int, bytes], ...]) -> bytes:
    """The call frames of all copies."""
    steps = []
    for copy in template.finditer(code):
        place = copy.end("mark") if copy["mark"] else copy.start()
        for size, instructions in rules:
            place += size
            steps.append((place, instructions))
    return call_frames(len(code), len(code), steps)
