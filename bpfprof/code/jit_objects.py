"""Code that a just-in-time compiler lists for debuggers: the memory of a process in, an ELF file of each object out.

LLVM's compilers (Numba's among them) keep a list of the object files they have made at `__jit_debug_descriptor`:
GDB manual, "JIT Interface"; struct jit_descriptor, jit_code_entry. Each names itself where its sections were loaded
(llvm/lib/ExecutionEngine/RuntimeDyld/RuntimeDyldELF.cpp, LLVM 15 to 20). Its call frame information is relocated in
memory only. So both are read, and put together to a file like any other: with code, call frames and functions.

All of it is a stranger's: every count and size is bounded, and what contradicts itself is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.elf.symbols.lookup import ELF_SYMBOL_DTYPE
from bpfprof.proc.memory import ProcessMemory

DESCRIPTOR = "__jit_debug_descriptor"
_DESCRIPTOR = struct.Struct("<IIQQ")  # version, action, entry that it is about, first entry
_ENTRY = struct.Struct("<QQQQ")  # next, previous, object file, its size
_OBJECT_LIMIT, _OBJECT_LIMIT_BYTES = 2000, 4 << 20
_SECTION_LIMIT_BYTES = 4 << 20
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_IDENT = b"\x7fELF\x02\x01\x01" + bytes(9)
_NAMES = b"\0.jit\0.eh_frame\0.symtab\0.strtab\0.shstrtab\0"  # JIT_SECTION of elf/asm/traced_rules.py
_PAGE_MASK = ~0xFFF
_FARTHEST_BYTES = 1 << 31
_EXECINSTR = 4  # SHF_EXECINSTR


@dataclass(frozen=True)
class JitObject:
    """`content` is an ELF file of addresses from `bias` on; its code is at [start, end)."""

    start: int
    end: int
    bias: int
    content: bytes


@dataclass(frozen=True)
class _Section:
    name: bytes
    address: int
    offset: int
    size: int
    link: int
    is_code: bool


def first_entry(memory: ProcessMemory, descriptor: int) -> int:
    """What the list begins with: another one after each change. 0 where there is none."""
    data = memory.read(descriptor, _DESCRIPTOR.size)
    version, _, _, first = _DESCRIPTOR.unpack(data) if data else (0, 0, 0, 0)
    return int(first) if version == 1 else 0


def list_entries(memory: ProcessMemory, entry: int) -> Iterator[tuple[int, int, int]]:
    """(entry, address of its object file, size of that), from the newest on."""
    seen: set[int] = set()
    while entry and entry not in seen and len(seen) < _OBJECT_LIMIT:
        seen.add(entry)
        data = memory.read(entry, _ENTRY.size)
        if data is None:
            return
        following, _, address, size = _ENTRY.unpack(data)
        yield entry, address, size
        entry = following


def read_object(memory: ProcessMemory, address: int, size: int) -> JitObject | None:
    """One object file as its compiler has it, and as it was loaded; None for one that is not understood."""
    content = memory.read(address, size) if size <= _OBJECT_LIMIT_BYTES else None
    if content is None:
        return None
    try:
        sections = _sections(content)
        named = {section.name: section for section in sections}
        text = max(sections, key=lambda section: section.size * section.is_code)
        frames, symbols = named[b".eh_frame"], named[b".symtab"]
        strings = sections[symbols.link]
    except (struct.error, KeyError, IndexError, ValueError):
        return None
    if not text.is_code or not text.address or not frames.address or max(text.size, frames.size) > _SECTION_LIMIT_BYTES:
        return None
    if abs(text.address - frames.address) > _FARTHEST_BYTES or not text.size:
        return None
    code, call_frames = memory.read(text.address, text.size), memory.read(frames.address, frames.size)
    entries = content[symbols.offset :][: symbols.size]
    table = np.frombuffer(entries, ELF_SYMBOL_DTYPE, len(entries) // ELF_SYMBOL_DTYPE.itemsize).copy()
    if code is None or call_frames is None:
        return None
    bias = min(text.address, frames.address) & _PAGE_MASK
    table = table[table["section"] == sections.index(text)]
    table["value"] += np.uint64(text.address - bias)
    table["section"] = 1
    names = content[strings.offset :][: strings.size]
    image = made_image((text.address - bias, code), (frames.address - bias, call_frames), table.tobytes(), names)
    return JitObject(text.address, text.address + text.size, bias, image)


def _sections(content: bytes) -> list[_Section]:
    """Raises struct.error or ValueError where the file is no ELF file of 64 bits, or is cut."""
    header = _HEADER.unpack_from(content)
    offset, entry_size, count, names_index = header[6], header[11], header[12], header[13]
    if header[0][:6] != _IDENT[:6] or entry_size != _SECTION_HEADER.size:
        raise ValueError
    rows = [_SECTION_HEADER.unpack_from(content, offset + number * entry_size) for number in range(count)]
    names_at = rows[names_index][4] if names_index < count else len(content)
    sections = []
    for name, _, flags, address, place, size, link, *_ in rows:
        end = content.find(b"\0", names_at + name, names_at + name + 64)
        sections.append(_Section(content[names_at + name : end], address, place, size, link, bool(flags & _EXECINSTR)))
    return sections


def made_image(code: tuple[int, bytes], frames: tuple[int, bytes], symbols: bytes, names: bytes) -> bytes:
    """An ELF file with these sections, of which ElfImage is made. Code and call frames are (address, bytes)."""
    at = _HEADER.size + _PROGRAM_HEADER.size
    parts = [code[1], frames[1], symbols, names + b"\0", _NAMES]
    places = []
    for part in parts:
        places.append(at)
        at += len(part)
    # name, type (SHT_PROGBITS, SYMTAB, STRTAB), flags (SHF_ALLOC, EXECINSTR), address, link, entry size
    kinds = [(1, 1, 6, code[0], 0, 0), (6, 1, 2, frames[0], 0, 0), (16, 2, 0, 0, 4, 24), (24, 3, 0, 0, 0, 0)]
    kinds.append((32, 3, 0, 0, 0, 0))
    headers = [bytes(_SECTION_HEADER.size)]
    for (name, kind, flags, address, link, entry_size), place, part in zip(kinds, places, parts):
        headers.append(_SECTION_HEADER.pack(name, kind, flags, address, place, len(part), link, 0, 1, entry_size))
    size = len(code[1])
    segment = _PROGRAM_HEADER.pack(1, 5, places[0], code[0], code[0], size, size, 1)  # PT_LOAD, PF_R | PF_X
    header = _HEADER.pack(_IDENT, 3, 62, 1, 0, _HEADER.size, at, 0, 64, 56, 1, 64, len(headers), len(headers) - 1)
    return b"".join([header, segment, *parts, *headers])
