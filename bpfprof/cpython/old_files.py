"""What a file with CPython 3.10 or older tells by its code only: an `ElfImage` in, numbers out.

`Py_Version` is new in 3.11, and `_PyRuntime` in 3.7: before it, the first interpreter is a static variable. Functions
that every program may call return both, so exported symbols are enough: a stripped file will do.
"""

from __future__ import annotations

import re

from bpfprof.elf.image import ElfImage

_CODE_BYTES = 256  # Py_GetVersion has 29 to 50
# PY_VERSION, Include/patchlevel.h; a build from between two releases ends with a plus.
_PY_VERSION = re.compile(rb"(\d)\.(\d{1,2})\.(\d{1,3})(?:(a|b|rc)(\d{1,2}))?\+?\0")
_LEVELS = {b"": 0xF, b"a": 0xA, b"b": 0xB, b"rc": 0xC}  # PY_RELEASE_LEVEL, the same file
_LOAD = b"\x48\x8b\x05"  # mov disp32(%rip),%rax: Intel SDM volume 2, "MOV" (December 2023)
_LOAD_WITHIN_BYTES = 16  # endbr64 and a frame pointer may come before it


def version_hex(image: ElfImage) -> int:
    """PY_VERSION_HEX of the interpreter in this file, 0 when it cannot be told.

    Py_GetVersion prints PY_VERSION (Python/getversion.c, v3.6.15 to v3.10.13): one of the addresses in its code,
    absolute or relative to the next instruction, is that of the text. Every byte is tried as the beginning of one.
    """
    function = image.find_symbol("Py_GetVersion")
    size = min(function.size or _CODE_BYTES, _CODE_BYTES) if function else 0
    code = image.read(function.address, size) if function else None
    if function is None or code is None:
        return 0
    for position in range(len(code) - 3):
        operand = code[position : position + 4]
        relative = function.address + position + 4 + int.from_bytes(operand, "little", signed=True)
        for address in (relative, int.from_bytes(operand, "little")):
            found = _PY_VERSION.match(image.read(address, 24) or b"") if address > 0 else None
            if found:
                major, minor, micro, serial = (int(found[group] or 0) for group in (1, 2, 3, 5))
                return major << 24 | minor << 16 | micro << 8 | _LEVELS[found[4] or b""] << 4 | serial
    return 0


def interpreters_variable(image: ElfImage) -> int | None:
    """ELF address of `interp_head` of CPython 3.6 and older, which PyInterpreterState_Head returns; None without it.

    Python/pystate.c (v3.6.15). Later ones have `_PyRuntime`.
    """
    function = image.find_symbol("PyInterpreterState_Head", dynamic_only=True)
    code = image.read(function.address, _LOAD_WITHIN_BYTES + 8) if function else None
    place = code.find(_LOAD, 0, _LOAD_WITHIN_BYTES) if code else -1
    if function is None or code is None or place < 0:
        return None
    end = place + 7
    return function.address + end + int.from_bytes(code[place + 3 : end], "little", signed=True)
