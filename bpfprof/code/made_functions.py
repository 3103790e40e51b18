"""Functions that a program made at run time and lists nowhere: memory around an address in, an ELF file with it out.

Those of Xbyak (oneDNN's, by which PyTorch convolves) keep no frame pointer and have no call frame information. Each
begins a buffer of its own, in whole pages, of which it fills a part (256 KiB and more: PyTorch 2.6 and 2.13). So one
begins where the page before is empty, or the mapping begins, or another ends. Where it ends its instructions tell, and
what they do to the stack is followed from the first one on (elf/asm): what is none cannot be followed to its return.
"""

from __future__ import annotations

import numpy as np

from bpfprof.code.jit_objects import JitObject, made_image
from bpfprof.elf.asm.extent import functions_in
from bpfprof.elf.symbols.lookup import ELF_SYMBOL_DTYPE
from bpfprof.proc.memory import ProcessMemory

PAGE_BYTES = 4096
_LONGEST_BYTES = 512 << 10  # of a matrix product
_EMPTY = bytes(PAGE_BYTES)
_NAME = b"\0made\0"  # symbols without a name are left out; nobody sees it
_FUNCTION_INFO = 0x12  # STB_GLOBAL, STT_FUNC


def find_function(memory: ProcessMemory, start: int, end: int, address: int) -> JitObject | None:
    """The function of a mapping [start, end) that an address is in; None where none is found."""
    page = address & -PAGE_BYTES
    first = max(start, page - _LONGEST_BYTES)
    before = memory.read(first, page + PAGE_BYTES - first)
    if before is None:
        return None
    begin = page
    while begin > first and before[begin - first - PAGE_BYTES : begin - first] != _EMPTY:
        begin -= PAGE_BYTES
    if begin == first > start:
        return None  # it would be longer than any
    code = memory.read(begin, min(end - begin, _LONGEST_BYTES)) or b""
    used = page + PAGE_BYTES - begin
    while used < len(code) and code[used : used + PAGE_BYTES] != _EMPTY:
        used += PAGE_BYTES
    found = (each for each in functions_in(code[:used], begin) if each[0] <= address < each[1])
    start, end = next(found, (0, 0))
    if not end:
        return None
    size, function = end - start, code[start - begin : end - begin]
    symbol = np.zeros(1, ELF_SYMBOL_DTYPE)
    symbol["name"], symbol["info"], symbol["section"], symbol["value"], symbol["size"] = 1, _FUNCTION_INFO, 1, 0, size
    content = made_image((0, function), (size, b""), symbol.tobytes(), _NAME)
    return JitObject(start, end, start, content)
