"""Symbols by their names, in .dynsym or .symtab: a table and its strings in, `ElfSymbol` out.

The name is searched for in the strings, and all places where it stands then in the table: 0.1 ms in a usual library,
13 ms in the largest. Hash tables would be quicker, but .symtab has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from bpfprof.array_types import NDArray
from bpfprof.dataclass import dataclass
from bpfprof.model.ids import ElfAddress

# Exactly so many bytes at a place, which is an ELF address or a file offset; None on a miss.
Read = Callable[[int, int], "bytes | None"]

ELF_SYMBOL_DTYPE = np.dtype(  # Elf64_Sym
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
# Elf64_Dyn tags, gABI chapter 5 and <elf.h> (glibc 2.36). Those of the second line are addresses of tables.
_DT_STRTAB, _DT_SYMTAB, _DT_STRSZ = 5, 6, 10
_DT_TABLES = (4, 5, 7, 23, 25, 26, 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE)
_SHN_UNDEF = 0
_STT_FUNC, _STT_TLS = 2, 6
_NAME_PLACE_LIMIT = 16  # where the strings may hold the name; a sound file has one or two places
_CHUNK_BYTES = ELF_SYMBOL_DTYPE.itemsize << 16
_LIMIT_BYTES = 128 << 20  # which take at most 0.2 s; rustc's library, with 20 MB of names, needs half of it
_FOUND_COSTS = 4  # one part in so many: a sound file has what is looked for, some ten names
_FUNCTION_LIMIT = 4096  # with wanted initials
_NAME_BYTES = 80


@dataclass(frozen=True)
class ElfSymbol:
    """`size` is in bytes, 0 when the file does not say."""

    address: ElfAddress
    size: int


class SymbolSearch:
    """All searches in one file. They go through _LIMIT_BYTES in all, whatever it says: what lies beyond is not found.

    Searches that find something count less.

    Regions are (place, size).
    """

    def __init__(self) -> None:
        self._room = _LIMIT_BYTES

    def find_dynamic(self, read: Read, tags: Mapping[int, int], name: str) -> ElfSymbol | None:
        """`tags` is the dynamic section. None when the symbol is not there or not defined."""
        return self.find(read, *_dynamic_tables(tags), name)

    def find(self, read: Read, table: Sequence[int], strings: Sequence[int], name: str) -> ElfSymbol | None:
        """The first of the table that is defined; None when none is."""
        room = self._room
        # A linker may store a name as the tail of a longer one, so each place of the text is a possible st_name.
        places = list(islice(self._places(read, strings, name.encode() + b"\0"), _NAME_PLACE_LIMIT))
        for entries in self._entries(read, table) if places else ():
            named = entries[np.isin(entries["name"], np.array(places, np.uint32))]
            # A library that merely uses a symbol lists it too; the value of a TLS symbol is no address.
            found = named[(named["section"] != _SHN_UNDEF) & (named["info"] & 15 != _STT_TLS)]
            if len(found):
                self._room = room - (room - self._room) // _FOUND_COSTS
                return ElfSymbol(ElfAddress(int(found["value"][0])), int(found["size"][0]))
        return None

    def dynamic_functions(
        self, read: Read, tags: Mapping[int, int], initials: set[bytes]
    ) -> Iterator[tuple[str, ElfAddress]]:
        """Names and addresses of defined functions whose names begin with one of these two bytes, the first 4,096.

        Names end after 80 bytes. None where there is no room for all names.
        """
        table, strings = _dynamic_tables(tags)
        if not 1 < strings[1] <= self._room or (text := read(*strings)) is None:
            return
        self._room -= strings[1]
        letters = np.frombuffer(text, np.uint8)
        wanted = np.array([int.from_bytes(pair, "little") for pair in initials], np.uint16)
        left = _FUNCTION_LIMIT
        for entries in self._entries(read, table):
            is_defined = (entries["info"] & 15 == _STT_FUNC) & (entries["section"] != _SHN_UNDEF)
            entries = entries[is_defined & (entries["name"] < len(text) - 1)]
            names = entries["name"]
            entries = entries[np.isin(letters[names] | letters[names + 1].astype(np.uint16) << 8, wanted)][:left]
            for name, value in zip(entries["name"].tolist(), entries["value"].tolist()):
                yield text[name : name + _NAME_BYTES].partition(b"\0")[0].decode("ascii", "replace"), ElfAddress(value)
            left -= len(entries)

    def _places(self, read: Read, strings: Sequence[int], text: bytes) -> Iterator[int]:
        """Offsets within the strings at which `text` stands."""
        for start, chunk in self._chunks(read, strings, len(text) - 1):
            position = chunk.find(text)
            while position >= 0:
                yield start + position
                position = chunk.find(text, position + 1)

    def _entries(self, read: Read, table: Sequence[int]) -> Iterator[NDArray[np.void]]:
        """ELF_SYMBOL_DTYPE, in pieces."""
        for _, chunk in self._chunks(read, table, 0):
            yield np.frombuffer(chunk, ELF_SYMBOL_DTYPE, len(chunk) // ELF_SYMBOL_DTYPE.itemsize)

    def _chunks(self, read: Read, region: Sequence[int], overlap: int) -> Iterator[tuple[int, bytes]]:
        """(offset within the region, bytes), as far as there is room; what cannot be read takes as much of it."""
        for start in range(0, region[1], _CHUNK_BYTES):
            size = min(_CHUNK_BYTES + overlap, region[1] - start, self._room)
            if not size:
                return
            self._room -= size
            yield start, read(region[0] + start, size) or b""


def _dynamic_tables(tags: Mapping[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Regions of .dynsym and .dynstr."""
    start = tags.get(_DT_SYMTAB, 0)
    # The dynamic section does not tell how long .dynsym is; it ends before the table that follows.
    end = min((tags[tag] for tag in _DT_TABLES if tags.get(tag, 0) > start), default=start)
    return (start, end - start), (tags.get(_DT_STRTAB, 0), tags.get(_DT_STRSZ, 0))
