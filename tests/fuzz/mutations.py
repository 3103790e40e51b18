"""How files are damaged for the fuzz tests: sound ELF files in, endless variants of them out.

Half of the damage knows the format: it goes to one field of a header, a symbol, a hash table, a relocation, a note, and
puts there what such a field should never hold. Layouts: System V gABI, chapters 4 and 5, and <elf.h> (glibc 2.36).
"""

from __future__ import annotations

import lzma
import random
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

WORDS = (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\x80\x80\x80\x80", b"\0\1\0\0")
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_HEADER_WIDTHS = (1,) * 16 + (2, 2, 4, 8, 8, 8, 4, 2, 2, 2, 2, 2, 2)
_SEGMENT_WIDTHS = (4, 4, 8, 8, 8, 8, 8, 8)
_SECTION_WIDTHS = (4, 4, 8, 8, 8, 8, 4, 4, 8, 8)
# Elements of sections by sh_type: SYMTAB, STRTAB, RELA, HASH, DYNAMIC, NOTE, DYNSYM, GNU_HASH.
_ELEMENT_WIDTHS = {
    2: (4, 1, 1, 2, 8, 8),
    3: (1,),
    4: (8, 4, 4, 8),
    5: (4,),
    6: (8, 8),
    7: (4,),
    11: (4, 1, 1, 2, 8, 8),
    0x6FFFFFF6: (4,),
}
_SIZES = (0, 1, 4, 8, 16, 24, 64, 0xFFFF, 0x10000, 1 << 20, 1 << 26, 1 << 28, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_SHF_COMPRESSED = 0x800
_CHDR = struct.Struct("<IIQQ")

Field = tuple[int, int]  # offset, width


def damage(rng: random.Random, data: bytearray) -> None:
    """One change that knows nothing of the format."""
    at = rng.randrange(len(data))
    how = rng.random()
    if how < 0.5:
        data[at] = rng.randrange(256)
    elif how < 0.7:
        word = rng.choice(WORDS)
        data[at : at + len(word)] = word
    elif how < 0.9:
        data[at] ^= 1 << rng.randrange(8)
    else:
        del data[at : at + rng.randrange(1, 9)]


@dataclass(frozen=True)
class Sound:
    """A file to damage: its fields by the structure they are of, and (section header, content) of packed sections."""

    data: bytes
    groups: tuple[tuple[Field, ...], ...]
    packed: tuple[tuple[int, bytes], ...]

    @classmethod
    def of(cls, data: bytes) -> Sound:
        header = _HEADER.unpack_from(data)
        segments, sections, segment_count, section_count, names_index = (
            header[5],
            header[6],
            *header[10:13:2],
            header[13],
        )
        groups = [_fields(0, 64, _HEADER_WIDTHS), _fields(segments, segment_count * 56, _SEGMENT_WIDTHS)]
        groups.append(_fields(sections, section_count * 64, _SECTION_WIDTHS))
        packed = []
        for index in range(section_count):
            at = sections + index * _SECTION.size
            name, kind, flags, _, offset, size, *_ = _SECTION.unpack_from(data, at)
            names = _SECTION.unpack_from(data, sections + names_index * _SECTION.size)[4] + name
            if kind != 8:  # SHT_NOBITS
                groups.append(_fields(offset, size, _ELEMENT_WIDTHS.get(kind, (1,))))
            if flags & _SHF_COMPRESSED:
                packed.append((at, zlib.decompress(data[offset + _CHDR.size : offset + size])))
            elif data[names:].startswith(b".gnu_debugdata\0"):
                packed.append((at, lzma.decompress(data[offset : offset + size])))
        return cls(data, tuple(group for group in groups if group), tuple(packed))

    def mutant(self, rng: random.Random) -> bytes:
        """A damaged copy."""
        data = bytearray(self.data)
        if self.packed and rng.random() < 0.3:
            _repack(rng, data, *rng.choice(self.packed))
        for _ in range(rng.choice((1, 1, 2, 3, 8, 20))):
            if rng.random() < 0.7:
                self._damage_field(rng, data)
            else:
                damage(rng, data)
        if rng.random() < 0.05:
            del data[rng.randrange(len(data)) :]
        return bytes(data)

    def _damage_field(self, rng: random.Random, data: bytearray) -> None:
        offset, width = rng.choice(rng.choice(self.groups))
        value = int.from_bytes(data[offset : offset + width], "little")
        how = rng.randrange(6)
        if how == 0:
            value = rng.choice(_SIZES)
        elif how == 1:
            value = rng.randrange(1 << 8 * width)
        elif how == 2:
            value += rng.choice((-64, -24, -8, -4, -1, 1, 4, 8, 24, 64))
        elif how == 3:
            value = len(data) + rng.randrange(-64, 65)
        elif how == 4:
            value = -rng.randrange(1, 4097)
        else:
            other, other_width = rng.choice(rng.choice(self.groups))
            value = int.from_bytes(data[other : other + other_width], "little")
        data[offset : offset + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")


def _fields(offset: int, size: int, widths: tuple[int, ...]) -> tuple[Field, ...]:
    """Of as many elements as fit into `size` bytes."""
    found, at = [], offset
    while at + sum(widths) <= offset + size:
        for width in widths:
            found.append((at, width))
            at += width
    return tuple(found)


def _repack(rng: random.Random, data: bytearray, section: int, content: bytes) -> None:
    """Damage what a section holds, compress it again, and put it at the end of the file."""
    inner = bytearray(Sound.of(content).mutant(rng) if content[:4] == b"\x7fELF" else content)
    for _ in range(rng.choice((0, 1, 3))):
        if inner:
            damage(rng, inner)
    fields = list(_SECTION.unpack_from(data, section))
    if fields[2] & _SHF_COMPRESSED:
        size = len(inner) if rng.random() < 0.8 else rng.choice(_SIZES)
        packed = _CHDR.pack(1, 0, size, 8) + zlib.compress(inner, 1)
    else:
        packed = lzma.compress(inner, preset=0)
    fields[4], fields[5] = len(data), len(packed)
    _SECTION.pack_into(data, section, *fields)
    data += packed


def mutants(rng: random.Random, files: list[Sound]) -> Iterator[bytes]:
    """Endless, the same for the same state of `rng`."""
    while True:
        yield rng.choice(files).mutant(rng)
