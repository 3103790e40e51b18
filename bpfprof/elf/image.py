"""One ELF file: a descriptor in; segments, sections, symbols and bytes out.

Only 64-bit little-endian files. Layouts are those of the System V ABI, chapter 4 and 5 (gABI, draft of 10 June 2013),
and of <elf.h> (glibc 2.36). The file is read with pread: it belongs to the target, who may truncate it at any time,
which would kill us with SIGBUS if it were mapped. A file that is in no file system (the vdso) gets an anonymous one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

from bpfprof.dataclass import dataclass
from bpfprof.elf.symbols.lookup import ElfSymbol, SymbolSearch
from bpfprof.model.ids import ElfAddress, FileOffset

EM_X86_64 = 62
EM_AARCH64 = 183
PF_X, PF_W, PF_R = 1, 2, 4
_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_PT_GNU_EH_FRAME = 0x6474E550  # LSB 5.0 core specification, section 10.7.1
_SHT_NOBITS = 8
_NT_GNU_BUILD_ID = 3

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_NOTE = struct.Struct("<III")  # Elf64_Nhdr
_DYNAMIC = struct.Struct("<qQ")  # Elf64_Dyn

_PAGE_BYTES = 4096  # what the kernel rounds segments to on x86-64: ELF_PAGESTART, fs/binfmt_elf.c (Linux 6.1)
_PROGRAM_HEADER_LIMIT = 128
_SECTION_LIMIT = 65536
_NOTES_LIMIT_BYTES = 64 << 10  # of a file
_DYNAMIC_LIMIT_BYTES = 64 << 10
_NAMES_LIMIT_BYTES = 4 << 20
_READ_LIMIT_BYTES = 256 << 20
_MFD_NOEXEC_SEAL = 8  # <linux/memfd.h>, commit 105ff5339f49 ("mm/memfd: add MFD_NOEXEC_SEAL and MFD_EXEC") (in v6.3)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_NAME_LIMIT = 60  # characters, of at most 4 bytes; memfd_create(2) takes 249 bytes


class ElfError(ValueError):
    """The file is not an ELF file of a kind that can be read, or it contradicts itself."""


@dataclass(frozen=True)
class Segment:
    """A PT_LOAD; `flags` are PF_R, PF_W, PF_X."""

    address: ElfAddress
    offset: FileOffset
    file_size: int
    memory_size: int
    flags: int


class ElfSection(NamedTuple):
    """Where a section is. `address` is 0 when it is not loaded."""

    address: ElfAddress
    offset: FileOffset
    size: int


class ElfImage:
    """An open ELF file. Owns its descriptor: close it, or use it in a `with` statement."""

    def __init__(self, fd: int) -> None:
        """Take over `fd`, a regular file; it is closed, also when ElfError is raised."""
        self._fd = fd
        self._sections: dict[str, ElfSection] | None = None
        self._search = SymbolSearch()
        try:
            self._read_headers()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str) -> ElfImage:
        """OSError when it cannot be opened; ElfError when it is not a regular file or not a readable ELF file."""
        return cls(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> ElfImage:
        """A copy of `data` that nobody can change; `name` is for /proc/self/fd only. Raises as `open` does."""
        fd = _anonymous_file(name.replace("\0", "?")[:_NAME_LIMIT])
        try:
            view = memoryview(data)
            while len(view):
                view = view[os.write(fd, view) :]
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    def __enter__(self) -> ElfImage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Reads after this are misses."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_headers(self) -> None:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise ElfError("not a regular file")
        self.file_size = status.st_size
        header = _HEADER.unpack(self._need(0, _HEADER.size, "ELF header"))
        ident, self.type, self.machine = header[:3]
        self.entry = header[4]
        if ident[:4] != b"\x7fELF":
            raise ElfError("not an ELF file")
        if ident[4:6] != b"\x02\x01":  # ELFCLASS64, ELFDATA2LSB
            raise ElfError("not a 64-bit little-endian ELF file")
        program_offset, self._section_offset, program_size, program_count = header[5], header[6], header[9], header[10]
        self._section_entry_size, self._section_count, self._section_names_index = header[11:]
        if program_count > _PROGRAM_HEADER_LIMIT or (program_count and program_size != _PROGRAM_HEADER.size):
            raise ElfError("program headers of an unexpected number or size")
        table = self._need(program_offset, program_count * _PROGRAM_HEADER.size, "program headers")
        segments: list[Segment] = []
        notes: list[tuple[int, int]] = []
        self._dynamic = (0, 0)
        self.eh_frame_header: ElfSection | None = None  # PT_GNU_EH_FRAME: .eh_frame_hdr, also without section headers
        for kind, flags, offset, address, _, file_size, memory_size, _ in _PROGRAM_HEADER.iter_unpack(table):
            if kind == _PT_LOAD:
                segments.append(Segment(ElfAddress(address), FileOffset(offset), file_size, memory_size, flags))
            elif kind == _PT_DYNAMIC:
                self._dynamic = (offset, file_size)
            elif kind == _PT_NOTE:
                notes.append((offset, file_size))
            elif kind == _PT_GNU_EH_FRAME:
                self.eh_frame_header = ElfSection(ElfAddress(address), FileOffset(offset), file_size)
        self.segments = tuple(segments)
        self.build_id = self._read_build_id(notes)

    def fileno(self) -> int:
        """Its descriptor; -1 when it is closed."""
        return self._fd

    def status(self) -> os.stat_result:
        """Of the open file, as it is now."""
        return os.fstat(self._fd)

    def read_at(self, offset: int, size: int) -> bytes | None:
        """Exactly `size` bytes of the file; None when it is shorter or `size` is above 256 MiB."""
        if offset < 0 or not 0 <= size <= _READ_LIMIT_BYTES or offset + size > self.file_size or self._fd < 0:
            return None
        try:
            data = os.pread(self._fd, size, offset)
        except OSError:
            return None
        return data if len(data) == size else None

    def _need(self, offset: int, size: int, what: str) -> bytes:
        data = self.read_at(offset, size)
        if data is None:
            raise ElfError(f"the {what} lies outside the file")
        return data

    def read(self, address: int, size: int) -> bytes | None:
        """Bytes at an ELF address as the file holds them; None if any is outside the file-backed segments."""
        offset = self.offset_of(address, size)
        return None if offset is None else self.read_at(offset, size)

    def offset_of(self, address: int, size: int = 1) -> FileOffset | None:
        """Where the file holds `size` bytes of an ELF address; None when no single segment has them all."""
        for segment in self.segments:
            if segment.address <= address and address + size <= segment.address + segment.file_size:
                return FileOffset(segment.offset + address - segment.address)
        return None

    def bias_of(self, mapping_start: int, mapping_offset: int, permissions: str = "") -> int | None:
        """What to add to an ELF address of this file to get the runtime address in that mapping.

        None when no segment is mapped there, or when segments that share a page of the file would give different
        answers: use another mapping then. `permissions`, as in /proc/PID/maps, tells most of them apart; an executable
        mapping has always one answer.
        """
        fitting = [segment for segment in self.segments if _may_be_mapped(segment, mapping_offset, permissions)]
        from_start = [segment for segment in fitting if _page_start(segment.offset) == mapping_offset]
        # The kernel maps whole pages, so the first page may begin before the segment does.
        biases = {mapping_start - mapping_offset - (s.address - s.offset) for s in from_start or fitting}
        return biases.pop() if len(biases) == 1 else None

    def section(self, name: str) -> ElfSection | None:
        """The first section of that name; None when there is none or it takes no room in the file (.bss)."""
        sections = self._sections
        if sections is None:
            sections = self._sections = self._read_sections()
        return sections.get(name)

    def forget_sections(self) -> None:
        """They are read again when one is asked for; some 30 take 7 KB, and a recording has thousands of files."""
        self._sections = None

    def _read_sections(self) -> dict[str, ElfSection]:
        """By name. Empty when the section headers are absent or damaged: a file runs without them."""
        count, names_index = self._section_count, self._section_names_index
        if self._section_entry_size != _SECTION_HEADER.size or self._section_offset == 0:
            return {}
        if count == 0 or names_index == 0xFFFF:  # SHN_XINDEX: the numbers are in section header 0
            first = self.read_at(self._section_offset, _SECTION_HEADER.size)
            if first is None:
                return {}
            extended = _SECTION_HEADER.unpack(first)
            count, names_index = count or extended[5], extended[6] if names_index == 0xFFFF else names_index
        if count > _SECTION_LIMIT or names_index >= count:
            return {}
        table = self.read_at(self._section_offset, count * _SECTION_HEADER.size)
        if table is None:
            return {}
        headers = list(_SECTION_HEADER.iter_unpack(table))
        names = self.read_at(headers[names_index][4], min(headers[names_index][5], _NAMES_LIMIT_BYTES))
        if names is None:
            return {}
        sections: dict[str, ElfSection] = {}
        for name_offset, kind, _, address, offset, size, *_ in headers:
            end = names.find(b"\0", name_offset, name_offset + 256)
            if kind != _SHT_NOBITS and end > name_offset and offset + size <= self.file_size:
                name = names[name_offset:end].decode("ascii", "replace")
                sections.setdefault(name, ElfSection(ElfAddress(address), FileOffset(offset), size))
        return sections

    def dynamic_tags(self) -> dict[int, int]:
        """The dynamic section; its addresses are ELF addresses, for ld.so relocates them in memory only."""
        data = self.read_at(self._dynamic[0], min(self._dynamic[1], _DYNAMIC_LIMIT_BYTES)) or b""
        return dict(_DYNAMIC.iter_unpack(data[: len(data) - len(data) % _DYNAMIC.size]))

    def find_symbol(self, name: str, *, dynamic_only: bool = False) -> ElfSymbol | None:
        """A symbol that this file defines: .dynsym through its hash table, then .symtab unless `dynamic_only`."""
        symbol = self._search.find_dynamic(self.read, self.dynamic_tags(), name)
        if symbol is None and not dynamic_only:
            table, strings = self.section(".symtab"), self.section(".strtab")
            if table is not None and strings is not None:
                symbol = self._search.find(self.read_at, table[1:], strings[1:], name)
        return symbol

    def dynamic_functions(self, initials: set[bytes]) -> Iterator[tuple[str, ElfAddress]]:
        """Names and addresses of functions that .dynsym defines, of names that begin with one of these two bytes."""
        return self._search.dynamic_functions(self.read, self.dynamic_tags(), initials)

    def _read_build_id(self, notes: list[tuple[int, int]]) -> str:
        """The descriptor of NT_GNU_BUILD_ID in hex; "" when there is none."""
        left = _NOTES_LIMIT_BYTES
        for offset, size in notes:
            data = self.read_at(offset, min(size, left)) or b""
            left -= len(data)
            position = 0
            while position + _NOTE.size <= len(data):
                name_size, content_size, kind = _NOTE.unpack_from(data, position)
                # Names and contents are padded to 4 bytes (to 8 in segments of x86 properties, which hold no build id).
                content = position + _NOTE.size + (name_size + 3 & ~3)
                if kind == _NT_GNU_BUILD_ID and data[position + _NOTE.size : content] == b"GNU\0":
                    return data[content : content + content_size].hex() if content_size <= 64 else ""
                position = content + (content_size + 3 & ~3)
        return ""


def _anonymous_file(name: str) -> int:
    """Descriptor of an empty one that can be sealed. A machine may insist on one that cannot be executed."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create(name, flags)


def _page_start(offset: int) -> int:
    return offset - offset % _PAGE_BYTES


def _may_be_mapped(segment: Segment, offset: int, permissions: str) -> bool:
    """Whether a mapping of this page of the file can be of the segment; any permissions fit when they are ""."""
    if not _page_start(segment.offset) <= offset < segment.offset + segment.file_size:
        return False
    if permissions and bool(segment.flags & PF_X) != ("x" in permissions):
        return False
    # A writable segment may have become read-only (RELRO), not the other way round.
    return bool(segment.flags & PF_W) or "w" not in permissions
