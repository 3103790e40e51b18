"""Stubs of the procedure linkage table: by the slot that each jumps through, found in the relocations.

x86-64 psABI 1.0, sections 5.2 ("Procedure Linkage Table") and 4.4 ("Relocation"). What a stub looks like differs by
linker and by options (lazy, IBT, -z now), but each ends in `jmp *slot(%rip)`, bytes ff 25 and a 32-bit displacement.
"""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.elf.image import EM_X86_64, ElfImage
from bpfprof.elf.symbols.lookup import ELF_SYMBOL_DTYPE
from bpfprof.elf.symbols.reader import SectionText
from bpfprof.elf.symbols.table import SYMBOL_DTYPE, SymbolTable

_RELOCATION_DTYPE = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])  # Elf64_Rela
_R_GLOB_DAT, _R_JUMP_SLOT = 6, 7
_STUB_BYTES = 16
_JUMP_BYTES = 6
_PREFIXES = (b"\xf3\x0f\x1e\xfa\xf2", b"\xf3\x0f\x1e\xfa", b"\xf2")  # endbr64 and bnd before the jump
_SECTIONS = (".plt", ".plt.sec", ".plt.got")
_SECTION_LIMIT_BYTES = 8 << 20
_RELOCATIONS_LIMIT_BYTES = 48 << 20


def are_in_plt(image: ElfImage, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Whether each address is where stubs are."""
    found = np.zeros(len(addresses), np.bool_)
    for section in filter(None, map(image.section, _SECTIONS)):
        found |= (addresses >= section.address) & (addresses - np.uint64(section.address) < section.size)
    return found


def read_plt(image: ElfImage) -> SymbolTable:
    """Stubs as symbols that bear the name of the function they lead to; empty when the file has none that can be told.

    A stub for a function without a name (an IFUNC of the file itself) is left out.
    """
    symbols = np.zeros(0, SYMBOL_DTYPE)
    strings, table = image.section(".dynstr"), image.section(".dynsym")
    if image.machine != EM_X86_64 or strings is None or table is None:
        return SymbolTable(symbols, ())
    slots = _slots(image)
    found = [_stubs(image, name, slots) for name in _SECTIONS]
    symbols = np.concatenate(found)
    data = image.read_at(table.offset, min(table.size, _RELOCATIONS_LIMIT_BYTES)) or b""
    entries = np.frombuffer(data, ELF_SYMBOL_DTYPE, len(data) // ELF_SYMBOL_DTYPE.itemsize)
    symbols = symbols[symbols["name"] < len(entries)]
    symbols["name"] = entries["name"][symbols["name"]]
    return SymbolTable(symbols[symbols["name"] != 0], (SectionText(image.read_at, strings.offset, strings.size),))


def _slots(image: ElfImage) -> npt.NDArray[np.void]:
    """Relocations of the slots that functions are called through, by address of the slot."""
    parts = [np.zeros(0, _RELOCATION_DTYPE)]
    for name in (".rela.plt", ".rela.dyn"):
        section = image.section(name)
        data = image.read_at(section.offset, min(section.size, _RELOCATIONS_LIMIT_BYTES)) if section else None
        if data:
            rows = np.frombuffer(data, _RELOCATION_DTYPE, len(data) // _RELOCATION_DTYPE.itemsize)
            parts.append(rows[(rows["type"] == _R_JUMP_SLOT) | (rows["type"] == _R_GLOB_DAT)])
    slots = np.concatenate(parts)
    return slots[np.argsort(slots["offset"], kind="stable")]


def _stubs(image: ElfImage, name: str, slots: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """SYMBOL_DTYPE, with the index into .dynsym as `name`."""
    section = image.section(name)
    data = image.read_at(section.offset, min(section.size, _SECTION_LIMIT_BYTES)) if section else None
    if section is None or not data or len(data) < _JUMP_BYTES or not len(slots):
        return np.zeros(0, SYMBOL_DTYPE)
    code = np.frombuffer(data, np.uint8)
    jumps = np.flatnonzero((code[: 1 - _JUMP_BYTES] == 0xFF) & (code[1 : 2 - _JUMP_BYTES] == 0x25))
    bytes_of = code[jumps[:, None] + np.arange(2, _JUMP_BYTES)]
    displacements = np.ascontiguousarray(bytes_of).view("<i4").ravel().astype(np.int64)
    address = np.uint64(section.address)
    targets = (jumps + _JUMP_BYTES + displacements).astype(np.uint64) + address
    places = np.minimum(np.searchsorted(slots["offset"], targets), len(slots) - 1)
    is_known = slots["offset"][places] == targets
    jumps, places = jumps[is_known], places[is_known]
    starts = jumps - _prefix_sizes(code, jumps)
    ends = np.minimum(starts + _STUB_BYTES, np.append(starts[1:], len(data)))
    symbols = np.zeros(len(starts), SYMBOL_DTYPE)
    symbols["start"] = starts.astype(np.uint64) + address
    symbols["end"] = ends.astype(np.uint64) + address
    symbols["name"] = slots["symbol"][places]
    return symbols


def _prefix_sizes(code: npt.NDArray[np.uint8], jumps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Of the longest prefix that stands before each jump."""
    sizes = np.zeros(len(jumps), np.int64)
    for prefix in _PREFIXES:
        begin = jumps - len(prefix)
        is_there = begin >= 0
        for place, byte in enumerate(prefix):
            is_there &= code[np.maximum(begin, 0) + place] == byte
        sizes[is_there & (sizes == 0)] = len(prefix)
    return sizes
