"""What a file with CPython 3.10 or older tells by its code only: an `ElfImage` in, numbers out.

`Py_Version` is new in 3.11, and `_PyRuntime` in 3.7: before it, the first interpreter and the GIL are static variables.
Functions that every program may call have them in their code, so exported symbols are enough: a stripped file will do.
"""

from __future__ import annotations

import re

from bpfprof.elf.image import PF_W, PF_X, ElfImage

_CODE_BYTES = 256  # Py_GetVersion has 29 to 50
# PY_VERSION, Include/patchlevel.h; a build from between two releases ends with a plus.
_PY_VERSION = re.compile(rb"(\d)\.(\d{1,2})\.(\d{1,3})(?:(a|b|rc)(\d{1,2}))?\+?\0")
_LEVELS = {b"": 0xF, b"a": 0xA, b"b": 0xB, b"rc": 0xC}  # PY_RELEASE_LEVEL, the same file
_LOAD = b"\x48\x8b\x05"  # mov disp32(%rip),%rax: Intel SDM volume 2, "MOV" (December 2023)
_LOAD_WITHIN_BYTES = 16  # endbr64 and a frame pointer may come before it
_CALLS = b"\xe8\xe9"  # call rel32 and jmp rel32: "CALL" and "JMP", there
# lea disp32(%rip),%rdi; mov $imm32,%edi; mov $imm32,%rdi: "LEA" and "MOV", there; whether relative to what comes next.
_SET_RDI = {b"\x48\x8d\x3d": True, b"\xbf": False, b"\x48\xc7\xc7": False}
_GIL_VARIABLES = ("gil_mutex", "switch_mutex", "gil_cond", "switch_cond")
_CREATE_GIL_BYTES = 160  # as gcc 12.2 compiles it, with the four calls first


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


def gil_variables(image: ElfImage) -> dict[str, int]:
    """ELF addresses of the mutexes and condition variables of the GIL of CPython 3.6; {} where they cannot be told.

    By their names; in a stripped file by the order in which create_gil hands them to the functions that initialise
    them (Python/ceval_gil.h, v3.6.15). PyEval_InitThreads calls it before anything else, or has it inlined.
    """
    found = {name: image.find_symbol(name) for name in _GIL_VARIABLES}
    named: dict[str, int] = {name: symbol.address for name, symbol in found.items() if symbol}
    function = None if named else image.find_symbol("PyEval_InitThreads", dynamic_only=True)
    if function is None:
        return named
    for address in (function.address, *_first_call(image, function.address)):
        variables = _first_arguments(image, address)
        if len(variables) >= len(_GIL_VARIABLES):
            return dict(zip(_GIL_VARIABLES, variables))
    return {}


def _code(image: ElfImage, address: int) -> bytes:
    """What stands there, b"" where no code is."""
    rooms = [
        segment.address + segment.file_size - address
        for segment in image.segments
        if segment.flags & PF_X and segment.address <= address
    ]
    room = min((room for room in rooms if room > 0), default=0)
    return image.read(address, min(room, _CREATE_GIL_BYTES)) or b""


def _first_call(image: ElfImage, function: int) -> list[int]:
    """Where this code goes on in another function; [] when it does not."""
    code = _code(image, function)
    for place in range(len(code) - 4):
        target = function + place + 5 + int.from_bytes(code[place + 1 : place + 5], "little", signed=True)
        if code[place] in _CALLS and _code(image, target):
            return [target]
    return []


def _first_arguments(image: ElfImage, function: int) -> list[int]:
    """Addresses of variables that this code puts into %rdi, in its order, each once. Every byte is tried as one."""
    code = _code(image, function)
    found: dict[int, None] = {}
    for place in range(len(code) - 7):
        for opcode, is_relative in _SET_RDI.items():
            end = place + len(opcode) + 4
            if code.startswith(opcode, place):
                address = int.from_bytes(code[end - 4 : end], "little", signed=True)
                address += (function + end) * is_relative
                if any(
                    segment.flags & PF_W and 0 <= address - segment.address < segment.memory_size
                    for segment in image.segments
                ):
                    found[address] = None
    return list(found)
