"""One code object of a running interpreter: its address in; names, file and line table out, or why they are unknown.

An object may be freed, and its memory used again, while it is read. Types are checked and lengths bounded, so that
the worst is a wrong name, never an endless or unbounded read.
"""

from __future__ import annotations

import struct

from bpfprof import abi
from bpfprof.cpython.layout import NONE, Layout
from bpfprof.dataclass import dataclass
from bpfprof.model.ids import RuntimeAddress
from bpfprof.proc.memory import Memory
from bpfprof.proc.text import with_controls_replaced

_FILENAME_LIMIT = 4096  # PATH_MAX
_NAME_LIMIT = 1024
_LINETABLE_LIMIT_BYTES = 1 << 20
_ELLIPSIS = "…"  # marks a text that was cut
# One read should get the header and all of most texts and tables.
TEXT_GUESS_BYTES = 192
_LINETABLE_GUESS_BYTES = 2048

# Bits of PyASCIIObject.state: interned 2, kind 3, compact 1, ascii 1; Include/cpython/unicodeobject.h (3.6 to 3.15).
_KIND_SHIFT, _KIND_MASK = 2, 7
_COMPACT, _ASCII = 1 << 5, 1 << 6
_CODECS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}  # by kind, which is also the width in bytes

# Words of the code object from the first line (or before it) to the line table pointer, then the hash of the name (0
# where the code object has a version, which is among the words).
Identity = tuple[int, ...]
IDENTITY_WORDS = abi.CONSTANTS["BP_IDENTITY_WORDS"]


@dataclass(frozen=True)
class Unresolved:
    """Something that could not be found out, and why: a sentence for the user and a key to count by."""

    reason: str


@dataclass(frozen=True)
class CodeObject:
    """`code_start` is what the addresses of instructions count from, `qualname` before CPython 3.11 the name. When
    `identity` differs, another object has taken the address: its version from CPython 3.12 on, its first line, its
    pointers, and where there is no version the hash of its name.
    """

    address: RuntimeAddress
    filename: str
    name: str
    qualname: str
    first_line: int
    linetable: bytes
    code_start: RuntimeAddress
    identity: Identity


_UNREADABLE = Unresolved("the code object is not readable")
_NOT_CODE = Unresolved("there is no code object at this address")
_BAD_TEXT = Unresolved("a name of the code object is not readable")
_REPLACED = Unresolved("the code object was replaced while it was read")
_BAD_TABLE = Unresolved("the line table is not readable")


def identity_start(layout: Layout) -> int:
    """Where in a code object its IDENTITY_WORDS begin; they end with the pointer to the line table."""
    return layout.code_linetable + 8 - 8 * IDENTITY_WORDS


def read_code_identity(memory: Memory, layout: Layout, address: int) -> Identity | None:
    """What `CodeObject.identity` would be now; None when it is not readable."""
    data = memory.read(address + identity_start(layout), 8 * IDENTITY_WORDS)
    return None if data is None else _identity(memory, layout, data)


def _text_words(layout: Layout) -> slice:
    """Words of an identity that point to the filename, the name, the qualified name if there is one, the line table."""
    return slice(IDENTITY_WORDS - 1 - (layout.code_linetable - layout.code_filename) // 8, IDENTITY_WORDS)


def _identity(memory: Memory, layout: Layout, data: bytes) -> Identity:
    words = struct.unpack(f"<{IDENTITY_WORDS}Q", data)
    name_hash = 0
    if layout.code_version == NONE:
        name_at = words[_text_words(layout)][1]
        name_hash = memory.read_u64(name_at + layout.unicode_hash) or 0
    return (*words, name_hash)


def read_code_object(
    memory: Memory, layout: Layout, address: int, code_type_address: int = 0
) -> CodeObject | Unresolved:
    """`code_type_address` is that of PyCode_Type, 0 when it is not known. Never raises."""
    if address % 8:
        return _NOT_CODE
    header = memory.read(address, layout.code_linetable + 8)
    if header is None:
        return _UNREADABLE
    if code_type_address and _u64(header, layout.code_type) != code_type_address:
        return _NOT_CODE
    identity = _identity(memory, layout, header[identity_start(layout) : layout.code_linetable + 8])
    filename_at, name_at, *qualname_at, linetable_at = identity[_text_words(layout)]
    filename = read_text(memory, layout, filename_at, _FILENAME_LIMIT)
    name = read_text(memory, layout, name_at, _NAME_LIMIT)
    # A function at the top of a module shares one interned string for both.
    qualname = name if qualname_at in ([], [name_at]) else read_text(memory, layout, qualname_at[0], _NAME_LIMIT)
    if filename is None or name is None or qualname is None:
        return _BAD_TEXT
    linetable = _read_bytes(memory, layout, linetable_at)
    if linetable is None:
        return _BAD_TABLE
    (first_line,) = struct.unpack_from("<i", header, layout.code_first_line)
    if first_line < 0:
        return _NOT_CODE
    if read_code_identity(memory, layout, address) != identity:  # the strings may be another object's
        return _REPLACED
    start = RuntimeAddress(address + layout.code_adaptive)
    return CodeObject(RuntimeAddress(address), filename, name, qualname, first_line, linetable, start, identity)


def read_text(memory: Memory, layout: Layout, address: int, limit: int) -> str | None:
    """A `str` object, cut to `limit` characters and then ending in an ellipsis, controls as U+FFFD; None on a miss."""
    data = memory.read_up_to(address, TEXT_GUESS_BYTES)
    if len(data) < layout.unicode_compact_size + 8:
        return None
    length = _u64(data, layout.unicode_length)
    state = data[layout.unicode_state]
    kind = state >> _KIND_SHIFT & _KIND_MASK
    if kind not in _CODECS or length >= 1 << 48:
        return None
    kept = min(length, limit)
    size = kept * kind
    if state & _COMPACT:
        begin = layout.unicode_ascii_size if state & _ASCII else layout.unicode_compact_size
        raw = _slice(memory, address, data, begin, size)
    else:  # a legacy string: an instance of a subclass of str
        raw = memory.read(_u64(data, layout.unicode_compact_size), size)
    if raw is None:
        return None
    text = raw.decode(_CODECS[kind], errors="replace")
    return with_controls_replaced(text if kept == length else text[: kept - 1] + _ELLIPSIS)


def _read_bytes(memory: Memory, layout: Layout, address: int) -> bytes | None:
    """The contents of a `bytes` object; None when not readable or above _LINETABLE_LIMIT_BYTES."""
    data = memory.read_up_to(address, _LINETABLE_GUESS_BYTES)
    if len(data) < layout.bytes_data:
        return None
    size = _u64(data, layout.bytes_size)
    return _slice(memory, address, data, layout.bytes_data, size) if size <= _LINETABLE_LIMIT_BYTES else None


def _slice(memory: Memory, address: int, data: bytes, begin: int, size: int) -> bytes | None:
    """Bytes of the object at `address`, out of `data`, its first ones, if they are all there."""
    return data[begin : begin + size] if begin + size <= len(data) else memory.read(address + begin, size)


def _u64(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 8], "little")
