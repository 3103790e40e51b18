"""Code that CPython 3.14's own JIT makes: memory of a process in, a file with functions for each trace out.

Each trace has pages of its own: a function that saves registers for those that call it, and right behind that the code
of the trace, which is one function for whom the stack is concerned; then addresses that it loads (_PyJIT_Compile,
Python/jit.c; Tools/jit/shim.c, v3.14.0). Neither has rules, but what their instructions do to the stack can be followed
(elf/asm). The JIT of 3.15 keeps a frame pointer instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from bpfprof.code.jit_objects import JitObject, made_image
from bpfprof.code.trampolines import call_frames
from bpfprof.elf.asm.lengths import PADDING_BYTES, lengths
from bpfprof.elf.symbols.reader import ELF_SYMBOL_DTYPE
from bpfprof.proc.memory import ProcessMemory

_PAGE = 4096
_LIMIT_BYTES, _TRACE_LIMIT_BYTES = 1 << 20, 64 << 10
_LONGEST_SHIM = 64
# push of registers; mov between registers; call of what is behind it; pop of registers; ret.
_SHIM = re.compile(
    rb"(?P<pushes>(?:\x41?[\x50-\x57]){4,7})(?:[\x48-\x4d]\x89[\xc0-\xff]){2,4}\xe8(?P<distance>....)(?P<after>(?:\x41?[\x58-\x5f]){4,7}\xc3)",
    re.DOTALL,
)
_LOADS = (b"\xff\x15", b"\xff\x25")  # call and jmp by an address behind the code
_STOPS = (b"\xc3", b"\xe9", b"\xeb", b"\xe8", *_LOADS)
_FUNCTION = 0x12  # STB_GLOBAL, STT_FUNC: psABI


def find_traces(memory: ProcessMemory, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(address, its pages) of those that begin on a page of an executable mapping of memory."""
    head = memory.read(start, _LONGEST_SHIM)
    if head is None or not _is_shim(head):
        return
    content = memory.read_up_to(start, min(end - start, _LIMIT_BYTES))
    begins = [at for at in range(0, len(content), _PAGE) if _is_shim(content[at : at + _LONGEST_SHIM])]
    for begin, limit in zip(begins, [*begins[1:], len(content)]):
        yield start + begin, content[begin : min(limit, begin + _TRACE_LIMIT_BYTES)]


def trace_object(start: int, pages: bytes) -> JitObject | None:
    """What find_traces() found as a file; None if it is not understood."""
    shim = _SHIM.match(pages)
    size = _code_bytes(pages, shim.end()) if shim else 0
    if shim is None or not size:
        return None
    trace = np.zeros(1, ELF_SYMBOL_DTYPE)
    trace["name"], trace["info"], trace["section"] = 1, _FUNCTION, 1
    trace["value"], trace["size"] = shim.end(), size - shim.end()
    frames = call_frames(len(pages), shim.end(), _shim_steps(shim))
    image = made_image((0, pages[:size]), (len(pages), frames), trace.tobytes(), b"\0trace")
    return JitObject(start, start + size, start, image)


def _is_shim(code: bytes) -> bool:
    found = _SHIM.match(code)
    return found is not None and int.from_bytes(found["distance"], "little") == len(found["after"])


def _shim_steps(shim: re.Match[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each push and pop moves the stack; what holds from behind it on."""
    offset = 8
    for group, step in (("pushes", 8), ("after", -8)):
        for one in re.finditer(rb"\x41?[\x50-\x5f]", shim[group]):
            offset += step
            yield shim.start(group) + one.end(), bytes((0x0E, offset))  # DW_CFA_def_cfa_offset


def _code_bytes(code: bytes, first: int) -> int:
    """Where the instructions end, which are followed from `first` on; 0: they are not understood."""
    sizes = lengths(np.frombuffer(code + bytes(PADDING_BYTES), np.uint8)).size.tolist()
    at, end, limit = first, 0, len(code)
    while at < limit:
        size = sizes[at]
        if not size:
            return 0
        if code[at : at + 2] in _LOADS:
            limit = min(limit, at + 6 + int.from_bytes(code[at + 2 : at + 6], "little"))
        at += size
        if code.startswith(_STOPS, at - size):
            end = at
    return end if not code[end:limit].strip(b"\0") else 0
