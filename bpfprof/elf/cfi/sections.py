"""The sections that hold call frame information, as bytes: an `ElfImage` in, `FrameSection`s out."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.elf.image import PF_X, ElfError, ElfImage
from bpfprof.elf.leb128 import Ints

_SECTION_LIMIT_BYTES = 64 << 20  # .eh_frame of libtorch_cpu is 18 MB
_CODE_LIMIT_BYTES = 1 << 32
_ELFCOMPRESS_ZLIB = b"\1\0\0\0\0\0\0\0"  # ch_type, ch_reserved of Elf64_Chdr (gABI, section compression)
_CHDR_BYTES = 24
_DEBUG_LIMIT_BYTES = 32 << 20  # of .debug_frame, also compressed: it is read while the rows of .eh_frame are held
RECORD_LIMIT = 1 << 20  # functions of a file; libtorch_cpu, the largest we know, has a third of that

# .eh_frame_hdr, LSB 5.0 core specification, section 10.6.2
_HEADER_START = b"\x01\x1b"  # version 1; .eh_frame is pcrel sdata4
_TABLE_ENCODING = b"\x03\x3b"  # the count is udata4, the table datarel sdata4
_TABLE_BYTES = 12 + 8 * RECORD_LIMIT
_POINTER, _COUNT = struct.Struct("<i"), struct.Struct("<I")

Header = tuple[int, bytes]


@dataclass(frozen=True)
class FrameSection:
    """A section's bytes and its ELF address, which pointers in .eh_frame may be relative to.

    Without section headers its size is not known: then the first length of zero ends it.
    """

    data: bytes
    address: int
    is_debug: bool
    ends_at_zero: bool = False


def read_eh_frame(image: ElfImage) -> tuple[FrameSection, Header | None]:
    """.eh_frame, empty without one, and address and bytes of .eh_frame_hdr. Raises ElfError when it is too large."""
    section = image.section(".eh_frame")
    header = _header(image, has_section=section is not None)
    if section is not None:
        return FrameSection(_read(image, section.offset, section.size), section.address, is_debug=False), header
    return (FrameSection(b"", 0, is_debug=False) if header is None else _loaded_eh_frame(image, header)), header


def function_starts(image: ElfImage) -> Ints:
    """Where the functions of .eh_frame_hdr begin, ascending; none without a sound table. Raises ElfError."""
    address, content = _header(image, has_section=image.section(".eh_frame") is not None) or (0, b"")
    count = _table_count(content)
    starts = (
        np.sort(np.frombuffer(content, "<i4", 2 * count, 12)[::2].astype(np.int64)) if count else np.zeros(0, np.int64)
    )
    return starts + address


def functions_by_start(header: Header, frame: int) -> tuple[Ints, Ints] | None:
    """(ELF addresses of functions, ascending; where in an .eh_frame at that address the FDE of each is).

    None without a sound table, or with more than RECORD_LIMIT functions.
    """
    address, content = header
    count = _table_count(content)
    if not count or count < _COUNT.unpack_from(content, 8)[0]:
        return None
    table = np.frombuffer(content, "<i4", 2 * count, 12).reshape(-1, 2).astype(np.int64) + address
    table = table[np.argsort(table[:, 0], kind="stable")]
    return table[:, 0], table[:, 1] - frame


def frame_address(header: Header) -> int | None:
    """The ELF address of .eh_frame; None when it is not written as all linkers write it, or there is none."""
    address, content = header
    if len(content) < 8 or content[:2] != _HEADER_START:
        return None
    return address + 4 + int(_POINTER.unpack_from(content, 4)[0])


def frame_offsets(header: Header, frame: int) -> tuple[Ints, int] | None:
    """Where the table has the FDEs in an .eh_frame at that address, ascending, and how many are beyond RECORD_LIMIT.

    None without a sound table.
    """
    address, content = header
    used = _table_count(content)
    if not used:
        return None
    (count,) = _COUNT.unpack_from(content, 8)
    table = np.frombuffer(content, "<i4", 2 * used, 12)
    offsets = np.sort(table[1::2].astype(np.int64) + (address - frame))
    return offsets[np.flatnonzero(np.diff(offsets, prepend=-1 << 40))], count - used


def _header(image: ElfImage, has_section: bool) -> Header | None:
    where = (image.section(".eh_frame_hdr") if has_section else None) or image.eh_frame_header
    return None if where is None else (int(where.address), _read(image, where.offset, min(where.size, _TABLE_BYTES)))


def _table_count(content: bytes) -> int:
    """How many functions of a header's table are used; 0: it has no sound one."""
    if len(content) < 12 or content[:4] != _HEADER_START + _TABLE_ENCODING:
        return 0
    used = min(int(_COUNT.unpack_from(content, 8)[0]), RECORD_LIMIT)
    return used if 12 + 8 * used <= len(content) else 0


def _loaded_eh_frame(image: ElfImage, header: Header) -> FrameSection:
    """.eh_frame up to the last FDE that .eh_frame_hdr has; without a table, as much as its segment may hold."""
    empty = FrameSection(b"", 0, is_debug=False)
    address = frame_address(header)
    segment = next((s for s in image.segments if 0 <= (address or 0) - s.address < s.file_size), None)
    if address is None or segment is None:
        return empty
    available = segment.address + segment.file_size - address
    offset = segment.offset + address - segment.address
    table = frame_offsets(header, address)
    last = -1 if table is None else int(table[0][-1])
    if not 0 <= last <= available - _COUNT.size:
        size = max(0, min(available, _SECTION_LIMIT_BYTES, image.file_size - offset))
    else:
        (length,) = _COUNT.unpack(_read(image, offset + last, _COUNT.size))
        size = min(available, last + 4 + length)
    return FrameSection(_read(image, offset, size), address, is_debug=False, ends_at_zero=True)


def read_debug_frame(image: ElfImage) -> tuple[FrameSection, None]:
    """.debug_frame, decompressed; empty without one. Raises ElfError when it is too large or damaged."""
    section = image.section(".debug_frame")
    data = b"" if section is None else _read(image, section.offset, section.size, _DEBUG_LIMIT_BYTES)
    # No record of a debug section is so short that its length is 1 (ELFCOMPRESS_ZLIB).
    return FrameSection(_inflate(data) if data[:8] == _ELFCOMPRESS_ZLIB else data, 0, is_debug=True), None


def _read(image: ElfImage, offset: int, size: int, limit: int = _SECTION_LIMIT_BYTES) -> bytes:
    data = image.read_at(offset, size) if size <= limit else None
    if data is None:
        raise ElfError("call frame information that is too large or lies outside the file")
    return data


def _inflate(data: bytes) -> bytes:
    """The content of a section with SHF_COMPRESSED."""
    size = int.from_bytes(data[8:16], "little")
    if size > _DEBUG_LIMIT_BYTES:
        raise ElfError("call frame information that is too large")
    try:
        content = zlib.decompressobj().decompress(memoryview(data)[_CHDR_BYTES:], size) if size else b""
    except zlib.error as error:
        raise ElfError("a damaged compressed section") from error
    if len(content) != size:
        raise ElfError("a compressed section of the wrong size")
    return content


def code_range(image: ElfImage) -> tuple[int, int]:
    """ELF addresses from the first to the last executable segment."""
    code = [segment for segment in image.segments if segment.flags & PF_X]
    low = min((segment.address for segment in code), default=0)
    high = max((segment.address + segment.memory_size for segment in code), default=0)
    if high >= 1 << 64 or high - low >= _CODE_LIMIT_BYTES:
        raise ElfError("executable segments that are too far apart")
    return low, high
