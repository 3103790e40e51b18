"""The DWARF sections of an ELF file, as pyelftools wants them: read when needed, and never more than allowed.

pyelftools believes every count it reads, but it reads something in each of its loops: so the files it reads from count.
"""

from __future__ import annotations

import inspect
import io
import time
from collections.abc import Callable
from typing import Any

from bpfprof.elf.image import ElfImage

# Sections that may be compressed (SHF_COMPRESSED) are decompressed whole, all others are read piece by piece.
DECOMPRESSED_LIMIT_BYTES = 128 << 20  # of all sections of one file; it takes twice that for a moment
_COMPRESSED_LIMIT_BYTES = 64 << 20  # of one section
_BUFFER_BYTES = 16 << 10
_CLOCK_EVERY_READS = 256
_DWARF_READS = 300_000  # some 300 bytes each, while pyelftools keeps what it has read
_SECTION_READS = 1 << 20  # the headers and names of 65,536 sections

ReadAt = Callable[[int, int], bytes | None]
SECTIONS = (
    *("debug_info", "debug_abbrev", "debug_line", "debug_str", "debug_line_str", "debug_ranges", "debug_rnglists"),
    *("debug_addr", "debug_str_offsets", "debug_aranges"),
)


class LimitError(Exception):
    """More was asked for than is given; pyelftools may turn it into errors of its own."""


class ReadGuard:
    """How many reads, and how much CPU time, are left. `total` is the number of all reads so far."""

    def __init__(self) -> None:
        self._deadline_s = 0.0
        self._left = self._since_clock = 0
        self.total = 0
        self.is_late = False

    def start(self, limit_s: float) -> None:
        """Give this much CPU time of the process from now on."""
        self._deadline_s = time.process_time() + limit_s
        self.is_late = False

    def allow(self, read_count: int) -> None:
        """Give this many reads, and none of those given before. A read is a byte, a number or 64 bytes of a name."""
        self._left = read_count

    def count(self) -> None:
        """Raises LimitError."""
        self._left -= 1
        self.total += 1
        if self._left < 0:
            raise LimitError("a part of it is too large")
        self._since_clock += 1
        if self._since_clock >= _CLOCK_EVERY_READS:
            self._since_clock = 0
            self.check_time()

    def check_time(self) -> None:
        """Raises LimitError when the time is up."""
        if time.process_time() > self._deadline_s:
            self.is_late = True
            raise LimitError("it takes too long")


class _Window(io.RawIOBase):
    """A part of something that is read by offset and size."""

    def __init__(self, read_at: ReadAt, start: int, size: int) -> None:
        self._read_at = read_at
        self._start = start
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(0, offset + (0, self._position, self._size)[whence])
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self._size - self._position))
        data = self._read_at(self._start + self._position, size) or b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _GuardedFile(io.BufferedReader):
    """Whatever lies in `size` bytes from `start` on; each `read` is counted."""

    def __init__(self, read_at: ReadAt, start: int, size: int, guard: ReadGuard) -> None:
        super().__init__(_Window(read_at, start, size), _BUFFER_BYTES)
        self._guard = guard

    def read(self, size: int | None = -1, /) -> bytes:
        self._guard.count()
        return super().read(size)


class DebugSections:
    """Those of SECTIONS that the file has. Keep the file open."""

    def __init__(self, image: ElfImage, guard: ReadGuard, report: Callable[[str], None]) -> None:
        """Raises whatever pyelftools raises when the ELF file is damaged; other damage is told to `report`."""
        self._guard = guard
        self._found = _open_sections(image, guard, report)
        self._dwarf: Any = None
        self._renew_at = 0

    def size_of(self, name: str) -> int:
        """Decompressed; 0 without that section."""
        return int(self._found[name].size) if name in self._found else 0

    def read(self, name: str, offset: int, size: int) -> bytes:
        """As many of these bytes as there are."""
        if name not in self._found:
            return b""
        self._guard.allow(1)
        self._found[name].stream.seek(offset)
        data: bytes = self._found[name].stream.read(size)
        return data

    def dwarf(self) -> Any:
        """A DWARFInfo of pyelftools, another one from time to time because it keeps all it has read."""
        if self._dwarf is None or self._guard.total > self._renew_at:
            self._dwarf = _dwarf_of(self._found)
            self._renew_at = self._guard.total + _DWARF_READS
        return self._dwarf

    def forget(self) -> None:
        """Free what pyelftools keeps."""
        self._dwarf = None


def _open_sections(image: ElfImage, guard: ReadGuard, report: Callable[[str], None]) -> dict[str, Any]:
    """A DebugSectionDescriptor of pyelftools each, by name without the dot."""
    from elftools.dwarf.dwarfinfo import DebugSectionDescriptor
    from elftools.elf.elffile import ELFFile

    guard.allow(_SECTION_READS)
    elf = ELFFile(_GuardedFile(image.read_at, 0, image.file_size, guard))
    found: dict[str, Any] = {}
    room = DECOMPRESSED_LIMIT_BYTES
    for name in SECTIONS:
        place = image.section("." + name)
        section = elf.get_section_by_name("." + name) if place is not None else None
        if place is None or section is None:
            continue
        start, size = int(place.offset), place.size
        read_at: ReadAt = image.read_at
        if section.compressed:
            if section.data_size > room or size > _COMPRESSED_LIMIT_BYTES:
                report(f".{name}: larger than what is decompressed")
                continue
            try:
                read_at = _reader_of(section.data())
            except Exception as error:
                report(f".{name}: {error_text(error)}")
                continue
            start, size, room = 0, section.data_size, room - section.data_size
        stream = _GuardedFile(read_at, start, size, guard)
        found[name] = DebugSectionDescriptor(stream, "." + name, start, size, 0)
    return found


def _reader_of(data: bytes) -> ReadAt:
    return lambda offset, size: data[offset : offset + size]


def _dwarf_of(sections: dict[str, Any]) -> Any:
    from elftools.dwarf.dwarfinfo import DwarfConfig, DWARFInfo

    config = DwarfConfig(little_endian=True, machine_arch="x64", default_address_size=8)
    # Which sections it must be given differs from version to version.
    wanted = [name for name in inspect.signature(DWARFInfo).parameters if name.endswith("_sec")]
    return DWARFInfo(config=config, **{name: sections.get(name.removesuffix("_sec")) for name in wanted})


def error_text(error: Exception) -> str:
    """What went wrong, in some words; pyelftools' own may hold any number of bytes of the file."""
    try:
        text = "".join(character if character.isprintable() else "?" for character in str(error)[:80])
    except Exception:
        text = ""
    if not text or isinstance(error, LookupError):
        return f"{type(error).__name__} {text}".rstrip()
    return text
