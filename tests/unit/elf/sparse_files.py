"""ELF files of a few KiB on disk whose headers speak of hundreds of MiB, which are holes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bpfprof.elf.image import ElfImage

SYMBOL = struct.Struct("<IBBHQQ")
FUNCTION, UNDEFINED, DEFINED = 0x12, 0, 1
Part = tuple[int, int]  # offset in the file, which is its address too, and size
_HEADERS = 1 << 16  # bytes before the parts


def symbol(name: int, section: int = DEFINED, value: int = 0x1234) -> bytes:
    return SYMBOL.pack(name, FUNCTION, 0, section, value, 8)


def sparse_file(
    path: Path,
    size: int,
    contents: Mapping[int, bytes],
    *,
    loads: Sequence[tuple[int, int, int]] = ((0, 1 << 40, 4),),  # offset, size, flags
    tags: Mapping[int, int] | None = None,
    sections: Sequence[tuple[str, int, Part, int]] = (),  # name, type, where, link
) -> ElfImage:
    """Open; of that size, with these bytes at these offsets, which are beyond the first 64 KiB."""
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in (tags or {}).items())
    programs = [
        (1, flags, offset, offset, 0, min(length, size), min(length, size), 0) for offset, length, flags in loads
    ]
    programs.append((2, 6, _HEADERS - 4096, _HEADERS - 4096, 0, len(dynamic), len(dynamic), 8))
    names = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in sections) + b".names\0"
    headers = [(0,) * 10]
    for name, kind, (offset, length), link in sections:
        headers.append((names.index(name.encode() + b"\0"), kind, 0, offset, offset, length, link, 0, 8, 24))
    headers.append((names.index(b".names"), 3, 0, 0, _HEADERS - 8192, len(names), 0, 0, 1, 0))
    where = 64 + 56 * len(programs)
    counts = (56, len(programs), 64, len(headers), len(headers) - 1)
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, where if sections else 0, 0, 64, *counts)
    head += b"".join(struct.pack("<IIQQQQQQ", *program) for program in programs)
    head += b"".join(struct.pack("<IIQQQQIIQQ", *header) for header in headers)
    assert len(head) <= _HEADERS - 8192
    with path.open("wb") as file:
        for offset, content in {0: head, _HEADERS - 8192: names, _HEADERS - 4096: dynamic, **contents}.items():
            file.seek(offset)
            file.write(content)
        file.truncate(size)
    return ElfImage.open(str(path))


class Reads:
    """What is asked of files from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.bytes = 0
        read_at = ElfImage.read_at

        def counted(image: ElfImage, offset: int, size: int) -> bytes | None:
            self.count += 1
            self.bytes += size
            return read_at(image, offset, size)

        monkeypatch.setattr(ElfImage, "read_at", counted)
