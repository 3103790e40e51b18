"""The sections that hold call frame information, as bytes: an `ElfImage` in, `FrameSection`s out."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from bpfprof.elf.image import PF_X, ElfError, ElfImage

_SECTION_LIMIT_BYTES = 64 << 20  # .eh_frame of libtorch_cpu is 18 MB
_CODE_LIMIT_BYTES = 1 << 32
_ELFCOMPRESS_ZLIB = b"\1\0\0\0\0\0\0\0"  # ch_type, ch_reserved of Elf64_Chdr (gABI, section compression)
_CHDR_BYTES = 24

Header = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class FrameSection:
    """A section's bytes and its ELF address, which pointers in .eh_frame may be relative to."""

    data: bytes
    address: int
    is_debug: bool


def read_eh_frame(image: ElfImage) -> tuple[FrameSection, Header | None]:
    """.eh_frame, empty without one, and address and bytes of .eh_frame_hdr. Raises ElfError when it is too large."""
    section, header = image.section(".eh_frame"), image.section(".eh_frame_hdr")
    if section is None:
        return FrameSection(b"", 0, is_debug=False), None
    index = None if header is None else (int(header.address), _read(image, header.offset, header.size))
    return FrameSection(_read(image, section.offset, section.size), section.address, is_debug=False), index


def read_debug_frame(image: ElfImage) -> tuple[FrameSection, None]:
    """.debug_frame, decompressed; empty without one. Raises ElfError when it is too large or damaged."""
    section = image.section(".debug_frame")
    data = b"" if section is None else _read(image, section.offset, section.size)
    # No record of a debug section is so short that its length is 1 (ELFCOMPRESS_ZLIB).
    return FrameSection(_inflate(data) if data[:8] == _ELFCOMPRESS_ZLIB else data, 0, is_debug=True), None


def _read(image: ElfImage, offset: int, size: int) -> bytes:
    data = image.read_at(offset, size) if size <= _SECTION_LIMIT_BYTES else None
    if data is None:
        raise ElfError("call frame information that is too large or lies outside the file")
    return data


def _inflate(data: bytes) -> bytes:
    """The content of a section with SHF_COMPRESSED."""
    size = int.from_bytes(data[8:16], "little")
    if size > _SECTION_LIMIT_BYTES:
        raise ElfError("call frame information that is too large")
    try:
        content = zlib.decompressobj().decompress(data[_CHDR_BYTES:], size) if size else b""
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
