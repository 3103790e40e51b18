"""One symbol by its name: the hash tables of .dynsym, or a scan of .symtab; readers in, `ElfSymbol` out.

`read` reads at an ELF address, `read_at` at a file offset; both give exactly the bytes asked for, or None.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from bpfprof.model.ids import ElfAddress

Read = Callable[[int, int], bytes | None]

# Elf64_Dyn tags, gABI chapter 5 and <elf.h> (glibc 2.36).
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH = 4, 5, 6, 0x6FFFFEF5
_SHN_UNDEF = 0
_STT_TLS = 6
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym: name, info, other, section index, value, size
_CHAIN_LIMIT = 1 << 16  # symbols that one look-up follows
_NAME_PLACE_LIMIT = 16  # where .strtab may hold the name; a sound file has one or two places
_SCAN_LIMIT = 1 << 16  # entries of .symtab that one look-up reads; a sound file has a handful that fit
_CHUNK_BYTES = _SYMBOL.size << 16
_TABLE_LIMIT_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class ElfSymbol:
    """`size` is in bytes, 0 when the file does not say."""

    address: ElfAddress
    size: int


def find_dynamic_symbol(read: Read, tags: Mapping[int, int], name: str) -> ElfSymbol | None:
    """`tags` is the dynamic section. None when the symbol is not there, not defined, or there is no hash table."""
    if _DT_SYMTAB not in tags or _DT_STRTAB not in tags:
        return None
    wanted = name.encode() + b"\0"
    if _DT_GNU_HASH in tags:
        indices = _gnu_hash_candidates(read, tags[_DT_GNU_HASH], wanted[:-1])
    elif _DT_HASH in tags:
        indices = _sysv_hash_candidates(read, tags[_DT_HASH], wanted[:-1])
    else:
        return None
    for index in indices:
        entry = read(tags[_DT_SYMTAB] + index * _SYMBOL.size, _SYMBOL.size)
        if entry is None:
            return None
        if read(tags[_DT_STRTAB] + _SYMBOL.unpack(entry)[0], len(wanted)) == wanted:
            return _defined(entry)
    return None


def find_in_symbol_table(read_at: Read, table: Sequence[int], strings: Sequence[int], name: str) -> ElfSymbol | None:
    """`table` and `strings` are (offset, size) of .symtab and .strtab; None when the symbol is not there."""
    # A linker may store a name as the tail of a longer one, so each place of the text is a possible st_name.
    offsets = islice(_occurrences(read_at, strings, name.encode() + b"\0", 1), _NAME_PLACE_LIMIT)
    name_offsets = [struct.pack("<I", offset) for offset in offsets]
    places = (place for text in name_offsets for place in _occurrences(read_at, table, text, _SYMBOL.size))
    for place in islice(places, _SCAN_LIMIT):
        entry = read_at(table[0] + place, _SYMBOL.size)
        symbol = _defined(entry) if entry else None
        if symbol is not None:
            return symbol
    return None


def _defined(entry: bytes) -> ElfSymbol | None:
    """A library that merely uses a symbol lists it too, with section index SHN_UNDEF and value 0."""
    if len(entry) != _SYMBOL.size:
        return None
    _, info, _, section_index, value, size = _SYMBOL.unpack(entry)
    if section_index == _SHN_UNDEF or info & 15 == _STT_TLS:  # the value of a TLS symbol is no address
        return None
    return ElfSymbol(ElfAddress(value), size)


def _gnu_hash_candidates(read: Read, address: int, name: bytes) -> Iterator[int]:
    """Indices into .dynsym whose hash is that of `name`. Table: dl_setup_hash(), elf/dl-setup_hash.c (glibc 2.36)."""
    header = read(address, 16)
    if header is None:
        return
    bucket_count, first_hashed, bloom_count, bloom_shift = struct.unpack("<4I", header)
    if bucket_count == 0 or bloom_count == 0:
        return
    hash_value = 5381
    for byte in name:
        hash_value = (hash_value * 33 + byte) & 0xFFFFFFFF
    word = read(address + 16 + hash_value // 64 % bloom_count * 8, 8)
    bits = 1 << hash_value % 64 | 1 << (hash_value >> bloom_shift % 32) % 64
    if word is None or int.from_bytes(word, "little") & bits != bits:
        return
    buckets = address + 16 + bloom_count * 8
    bucket = read(buckets + hash_value % bucket_count * 4, 4)
    first = int.from_bytes(bucket or b"", "little")
    if first < first_hashed:
        return
    chain = buckets + bucket_count * 4 - first_hashed * 4
    for index in range(first, first + _CHAIN_LIMIT):
        link = read(chain + index * 4, 4)
        if link is None:
            return
        link_hash = int.from_bytes(link, "little")
        if link_hash | 1 == hash_value | 1:
            yield index
        if link_hash & 1:  # the last of its bucket
            return


def _sysv_hash_candidates(read: Read, address: int, name: bytes) -> Iterator[int]:
    """Indices into .dynsym in the bucket of `name`. Table: gABI chapter 5, "Hash Table"."""
    header = read(address, 8)
    bucket_count, chain_count = struct.unpack("<2I", header) if header else (0, 0)
    if bucket_count == 0:
        return
    hash_value = 0
    for byte in name:
        hash_value = (hash_value << 4) + byte
        high = hash_value & 0xF0000000
        hash_value = (hash_value ^ high >> 24) & 0x0FFFFFFF
    link = read(address + 8 + hash_value % bucket_count * 4, 4)
    for _ in range(min(chain_count, _CHAIN_LIMIT)):  # a chain that loops ends here
        index = int.from_bytes(link or b"", "little")
        if index == 0:
            return
        yield index
        link = read(address + 8 + (bucket_count + index) * 4, 4)


def _occurrences(read_at: Read, region: Sequence[int], text: bytes, stride: int) -> Iterator[int]:
    """Offsets within `region` (offset, size), multiples of `stride`, at which `text` stands."""
    overlap = len(text) - 1
    for start in range(0, min(region[1], _TABLE_LIMIT_BYTES), _CHUNK_BYTES):
        chunk = read_at(region[0] + start, min(_CHUNK_BYTES + overlap, region[1] - start)) or b""
        position = chunk.find(text)
        while 0 <= position < _CHUNK_BYTES:
            if position % stride == 0:
                yield start + position
            position = chunk.find(text, position - position % stride + stride)
