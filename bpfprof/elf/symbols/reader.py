"""The functions of an ELF file: .symtab, .dynsym and .gnu_debugdata in, a `SymbolTable` of ELF addresses out.

Without section headers there is .dynsym only, as the dynamic section has it.

Layouts: System V gABI, chapter 4 ("Sections", "Symbol Table"), and <elf.h> (glibc 2.36). .gnu_debugdata is an
xz-compressed ELF file with a .symtab of what .dynsym lacks: GDB manual, "MiniDebugInfo".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.elf.image import PF_X, ElfImage
from bpfprof.elf.symbols.lookup import ELF_SYMBOL_DTYPE
from bpfprof.elf.symbols.table import LOCAL, SYMBOL_DTYPE, UNSIZED, UNTYPED, ReadText, SymbolTable

ReadAt = Callable[[int, int], "bytes | None"]
Table = npt.NDArray[np.void]

_SECTION_DTYPE = np.dtype(  # Elf64_Shdr
    {
        "names": ["name", "type", "flags", "address", "offset", "size", "link", "info", "align", "entry_size"],
        "formats": ["<u4", "<u4", "<u8", "<u8", "<u8", "<u8", "<u4", "<u4", "<u8", "<u8"],
    }
)
_RANGE_DTYPE = np.dtype([("start", "<u8"), ("end", "<u8")])
_HEADER = struct.Struct("<40xQ10xHH2x")  # of Elf64_Ehdr: e_shoff, e_shentsize, e_shnum
_SHT_SYMTAB, _SHT_STRTAB, _SHT_NOBITS, _SHT_DYNSYM = 2, 3, 8, 11
_SHF_EXECINSTR = 4
_SHN_UNDEF, _SHN_ABS, _SHN_COMMON = 0, 0xFFF1, 0xFFF2
_STT_NOTYPE, _STT_FUNC, _STT_GNU_IFUNC = 0, 2, 10
_STB_LOCAL = 0
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_GNU_HASH = 4, 5, 6, 10, 0x6FFFFEF5  # gABI chapter 5, <elf.h>

_SECTION_LIMIT = 65536
_TABLE_LIMIT = 4  # symbol tables of one file; a sound one has two
_TABLE_LIMIT_BYTES = 128 << 20  # of all of them together
_CHAIN_LIMIT = 1 << 16
_CHUNK_ENTRIES = 1 << 17
_SYMBOL_LIMIT = 1 << 20  # functions of one file with its debug files; libtorch_cpu 2.13 has 440,000
_COMPRESSED_LIMIT_BYTES = 8 << 20
_DECOMPRESSED_LIMIT_BYTES = 48 << 20
_XZ_MEMORY_LIMIT_BYTES = 80 << 20  # what the decoder of `xz -9` needs is 65 MiB


def read_symbols(image: ElfImage, debug: ElfImage | None = None) -> SymbolTable:
    """Functions, and untyped symbols in executable sections, of the file and of its separate debug file.

    Never fails: what is missing or damaged is in `problems`. Names are read when asked for: keep both files open.
    """
    files: list[tuple[str, ReadAt]] = [("", image.read_at)]
    problems: list[str] = []
    if debug is not None:
        files.append(("debug file: ", debug.read_at))
    embedded = _embedded_file(image, problems)
    if embedded is not None:
        files.append((".gnu_debugdata: ", embedded))
    sections = [(label, read_at, _section_headers(read_at)) for label, read_at in files]
    if not len(sections[0][2]):
        sections[0] = ("", image.read_at, _dynamic_symbol_headers(image))
    code = _code_ranges(image, [headers for _, _, headers in sections])
    parts: list[Table] = []
    texts: list[ReadText] = []
    room, room_bytes = _SYMBOL_LIMIT, _TABLE_LIMIT_BYTES
    for label, read_at, headers in sections:
        for table, strings in _symbol_tables(headers):
            found = [part for part in _functions(read_at, table, code, len(texts), room, room_bytes) if len(part)]
            room -= sum(map(len, found))
            parts += found
            texts.append(SectionText(read_at, int(strings["offset"]), int(strings["size"])))
            room_bytes -= int(table["size"])
            if room_bytes < 0 or room <= 0:
                problems.append(f"{label}too many symbols: not all are used")
    symbols = np.concatenate(parts) if parts else np.zeros(0, SYMBOL_DTYPE)
    parts.clear()
    return SymbolTable(symbols, texts, problems, has_versions=True)


def _section_headers(read_at: ReadAt) -> Table:
    """_SECTION_DTYPE, by section number; empty when they are absent or damaged."""
    none = np.zeros(0, _SECTION_DTYPE)
    header = read_at(0, _HEADER.size)
    offset, entry_size, count = _HEADER.unpack(header) if header else (0, 0, 0)
    if not offset or entry_size != _SECTION_DTYPE.itemsize:
        return none
    if count == 0:  # SHN_LORESERVE or more: the number is the size of section header 0
        first = read_at(offset, entry_size)
        count = int(np.frombuffer(first, _SECTION_DTYPE)["size"][0]) if first else 0
    data = read_at(offset, count * entry_size) if count <= _SECTION_LIMIT else None
    return np.frombuffer(data, _SECTION_DTYPE) if data else none


def _dynamic_symbol_headers(image: ElfImage) -> Table:
    """What the section headers of .dynsym and .dynstr would be, from the dynamic section; empty without one."""
    none, tags = np.zeros(0, _SECTION_DTYPE), image.dynamic_tags()
    if not {_DT_SYMTAB, _DT_STRTAB, _DT_STRSZ} <= tags.keys():
        return none
    places = [image.offset_of(tags[tag]) for tag in (_DT_SYMTAB, _DT_STRTAB)]
    sizes = [_dynamic_symbol_count(image, tags) * ELF_SYMBOL_DTYPE.itemsize, min(tags[_DT_STRSZ], image.file_size)]
    if any(place is None or place >= image.file_size for place in places) or sizes[0] > _TABLE_LIMIT_BYTES:
        return none
    headers = np.zeros(2, _SECTION_DTYPE)
    headers["type"], headers["link"] = (_SHT_DYNSYM, _SHT_STRTAB), (1, 0)
    headers["offset"], headers["size"] = places, sizes
    return headers


def _dynamic_symbol_count(image: ElfImage, tags: dict[int, int]) -> int:
    """As a hash table tells it: gABI chapter 5, "Hash Table", and dl_setup_hash(), elf/dl-setup_hash.c (glibc 2.36)."""
    if _DT_HASH in tags:
        return int.from_bytes(image.read(tags[_DT_HASH] + 4, 4) or b"", "little")
    header = image.read(tags.get(_DT_GNU_HASH, -1), 12)
    bucket_count, first_hashed, bloom_count = struct.unpack("<3I", header) if header else (0, 0, 0)
    buckets = tags.get(_DT_GNU_HASH, 0) + 16 + bloom_count * 8
    data = image.read(buckets, bucket_count * 4) if bucket_count <= _SYMBOL_LIMIT else None
    last: int = max(np.frombuffer(data or bytes(4), "<u4").tolist())
    if last < first_hashed:
        return int(first_hashed)
    place = image.offset_of(buckets + bucket_count * 4 + (last - first_hashed) * 4)
    size = min(_CHAIN_LIMIT, (image.file_size - place) // 4) * 4 if place is not None else 0
    chain = np.frombuffer((image.read_at(place or 0, size) if size > 0 else None) or b"", "<u4")
    last_ones = np.flatnonzero(chain & 1)  # of their buckets
    return last + 1 + (int(last_ones[0]) if len(last_ones) else len(chain))


def _code_ranges(image: ElfImage, headers: list[Table]) -> Table:
    """Executable sections of the first file that has any, else its executable segments; ascending and apart."""
    for table in headers:
        code = table[(table["flags"] & _SHF_EXECINSTR != 0) & (table["address"] != 0)]
        if len(code):
            starts, sizes = code["address"], code["size"]
            break
    else:
        segments = [segment for segment in image.segments if segment.flags & PF_X]
        starts = np.array([segment.address for segment in segments], np.uint64)
        sizes = np.array([segment.memory_size for segment in segments], np.uint64)
    ranges = np.zeros(len(starts), _RANGE_DTYPE)
    ranges["start"] = starts
    ranges["end"] = starts + np.minimum(sizes, ~starts)
    ranges.sort(order="start")
    ranges["end"][:-1] = np.minimum(ranges["end"][:-1], ranges["start"][1:])
    return ranges


def _symbol_tables(headers: Table) -> Iterator[tuple[np.void, np.void]]:
    """The headers of each symbol table and of its strings, .symtab before .dynsym."""
    kinds = [np.flatnonzero(headers["type"] == kind) for kind in (_SHT_SYMTAB, _SHT_DYNSYM)]
    for table in headers[np.concatenate(kinds)[:_TABLE_LIMIT]]:
        if table["link"] < len(headers) and headers[table["link"]]["type"] == _SHT_STRTAB:
            yield table, headers[table["link"]]


def _functions(read_at: ReadAt, table: np.void, code: Table, text: int, room: int, room_bytes: int) -> Iterator[Table]:
    """Symbols that lie in `code`, in pieces, at most `room` of them and of so many bytes of the table."""
    if not len(code):
        return
    offset, end = int(table["offset"]), int(table["offset"]) + min(int(table["size"]), room_bytes)
    item = ELF_SYMBOL_DTYPE.itemsize
    while offset + item <= end and room > 0:
        size = min(_CHUNK_ENTRIES * item, (end - offset) // item * item)
        data = read_at(offset, size)
        if data is None:
            return
        found = _in_code(np.frombuffer(data, ELF_SYMBOL_DTYPE), code, text)[:room]
        room -= len(found)
        offset += size
        yield found


def _in_code(entries: Table, code: Table, text: int) -> Table:
    kind = entries["info"] & 15
    is_function = (kind == _STT_FUNC) | (kind == _STT_GNU_IFUNC)
    section = entries["section"]
    is_placed = (section != _SHN_UNDEF) & (section != _SHN_ABS) & (section != _SHN_COMMON)
    entries = entries[(is_function | (kind == _STT_NOTYPE)) & is_placed & (entries["name"] != 0)]
    starts = entries["value"]
    place = np.searchsorted(code["start"], starts, side="right") - 1
    limits = code["end"][place]
    is_in = (place >= 0) & (starts < limits)
    entries, starts, limits = entries[is_in], starts[is_in], limits[is_in]
    symbols = np.zeros(len(entries), SYMBOL_DTYPE)
    sizes = entries["size"]
    symbols["start"] = starts
    symbols["end"] = np.where(sizes == 0, limits, starts + np.minimum(sizes, limits - starts))
    symbols["name"] = entries["name"]
    symbols["rank"] = (
        UNSIZED * (sizes == 0)
        + LOCAL * (entries["info"] >> 4 == _STB_LOCAL)
        + UNTYPED * (entries["info"] & 15 == _STT_NOTYPE)
    )
    symbols["text"] = text
    return symbols


@dataclass(frozen=True)
class SectionText:
    """Names from a string section at that file offset."""

    read_at: ReadAt
    start: int
    length: int

    def __call__(self, offset: int, size: int) -> bytes:
        return self.read_at(self.start + offset, max(0, min(size, self.length - offset))) or b""


def _embedded_file(image: ElfImage, problems: list[str]) -> ReadAt | None:
    """The file in .gnu_debugdata, decompressed; None when there is none."""
    section = image.section(".gnu_debugdata")
    if section is None:
        return None
    data = image.read_at(section.offset, section.size) if section.size <= _COMPRESSED_LIMIT_BYTES else None
    if data is None:
        problems.append(".gnu_debugdata: larger than what is read of it")
        return None
    import lzma  # 5 ms, and seldom needed

    try:
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_LIMIT_BYTES)
        content = decoder.decompress(data, _DECOMPRESSED_LIMIT_BYTES)
    except (lzma.LZMAError, MemoryError) as error:
        problems.append(f".gnu_debugdata: {error}")
        return None
    if not decoder.eof:
        problems.append(".gnu_debugdata: truncated or too large")
        return None

    def read_at(offset: int, size: int) -> bytes | None:
        return content[offset : offset + size] if 0 <= offset <= offset + size <= len(content) else None

    return read_at
