"""Symbols by their names, in .dynsym or .symtab: a table and its strings in, `ElfSymbol` out.

The name is searched for in the strings, and each place where it stands in the table: 0.1 ms in a usual library, 13 ms
in the largest. Hash tables would be quicker, but .symtab has none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from bpfprof.dataclass import dataclass
from bpfprof.model.ids import ElfAddress

# Exactly so many bytes at a place, which is an ELF address or a file offset; None on a miss.
Read = Callable[[int, int], "bytes | None"]

# Elf64_Dyn tags, gABI chapter 5 and <elf.h> (glibc 2.36). Those of the second line are addresses of tables.
_DT_STRTAB, _DT_SYMTAB, _DT_STRSZ = 5, 6, 10
_DT_TABLES = (4, 5, 7, 23, 25, 26, 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE)
_SHN_UNDEF = 0
_STT_FUNC, _STT_TLS = 2, 6
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym: name, info, other, section index, value, size
_NAME_PLACE_LIMIT = 16  # where the strings may hold the name; a sound file has one or two places
_SCAN_LIMIT = 1 << 16  # entries that one look-up reads; a sound file has a handful that fit
_CHUNK_BYTES = _SYMBOL.size << 16
_TABLE_LIMIT_BYTES = 1 << 28
_NAME_BYTES = 80


@dataclass(frozen=True)
class ElfSymbol:
    """`size` is in bytes, 0 when the file does not say."""

    address: ElfAddress
    size: int


def find_dynamic_symbol(read: Read, tags: Mapping[int, int], name: str) -> ElfSymbol | None:
    """`tags` is the dynamic section. None when the symbol is not there or not defined."""
    return find_in_symbol_table(read, *_dynamic_tables(tags), name)


def _dynamic_tables(tags: Mapping[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """(place, size) of .dynsym and .dynstr"""
    start = tags.get(_DT_SYMTAB, 0)
    # The dynamic section does not tell how long .dynsym is; it ends before the table that follows.
    end = min((tags[tag] for tag in _DT_TABLES if tags.get(tag, 0) > start), default=start)
    return (start, end - start), (tags.get(_DT_STRTAB, 0), tags.get(_DT_STRSZ, 0))


def dynamic_functions(read: Read, tags: Mapping[int, int], initials: set[bytes]) -> Iterator[tuple[str, ElfAddress]]:
    """Names and addresses of the functions that a file defines, of those whose names begin with one of these two bytes.

    Names end after 80 bytes. A table or its names beyond _TABLE_LIMIT_BYTES are not read.
    """
    table, strings = _dynamic_tables(tags)
    if not 0 < strings[1] <= _TABLE_LIMIT_BYTES or (text := read(*strings)) is None:
        return
    for start in range(0, min(table[1], _TABLE_LIMIT_BYTES), _CHUNK_BYTES):
        chunk = read(table[0] + start, min(_CHUNK_BYTES, table[1] - start)) or b""
        whole = chunk[: len(chunk) - len(chunk) % _SYMBOL.size]
        for name, info, _, section_index, value, _ in _SYMBOL.iter_unpack(whole):
            if info & 15 == _STT_FUNC and section_index != _SHN_UNDEF and text[name : name + 2] in initials:
                yield text[name : name + _NAME_BYTES].partition(b"\0")[0].decode("ascii", "replace"), ElfAddress(value)


def find_in_symbol_table(read: Read, table: Sequence[int], strings: Sequence[int], name: str) -> ElfSymbol | None:
    """`table` and `strings` are (place, size) of the symbols and their names; None when it is not there."""
    # A linker may store a name as the tail of a longer one, so each place of the text is a possible st_name.
    offsets = islice(_occurrences(read, strings, name.encode() + b"\0", 1), _NAME_PLACE_LIMIT)
    name_offsets = [struct.pack("<I", offset) for offset in offsets]
    places = (place for text in name_offsets for place in _occurrences(read, table, text, _SYMBOL.size))
    for place in islice(places, _SCAN_LIMIT):
        entry = read(table[0] + place, _SYMBOL.size)
        symbol = _defined(entry) if entry else None
        if symbol is not None:
            return symbol
    return None


def _defined(entry: bytes) -> ElfSymbol | None:
    """A library that merely uses a symbol lists it too, with section index SHN_UNDEF and value 0."""
    _, info, _, section_index, value, size = _SYMBOL.unpack(entry)
    if section_index == _SHN_UNDEF or info & 15 == _STT_TLS:  # the value of a TLS symbol is no address
        return None
    return ElfSymbol(ElfAddress(value), size)


def _occurrences(read: Read, region: Sequence[int], text: bytes, stride: int) -> Iterator[int]:
    """Offsets within `region` (place, size), multiples of `stride`, at which `text` stands."""
    overlap = len(text) - 1
    for start in range(0, min(region[1], _TABLE_LIMIT_BYTES), _CHUNK_BYTES):
        chunk = read(region[0] + start, min(_CHUNK_BYTES + overlap, region[1] - start)) or b""
        position = chunk.find(text)
        while 0 <= position < _CHUNK_BYTES:
            if position % stride == 0:
                yield start + position
            position = chunk.find(text, position - position % stride + stride)
