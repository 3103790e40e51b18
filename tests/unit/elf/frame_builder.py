"""ELF files with hand-written call frame sections, built in memory."""

from __future__ import annotations

import struct
from pathlib import Path

from bpfprof.elf.cfi.tables import CallFrames, read_call_frames
from bpfprof.elf.image import ElfImage

CODE, EH_FRAME, EH_FRAME_HDR = 0x1000, 0x200000, 0x300000  # ELF addresses
_CODE_SIZE = 0x100000


def uleb(value: int) -> bytes:
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def sleb(value: int) -> bytes:
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        done = value == (-1 if byte & 0x40 else 0)
        out.append(byte | (0 if done else 0x80))
        if done:
            return bytes(out)


class FrameBuilder:
    """Grows a section record by record. With `debug` it is a .debug_frame."""

    def __init__(self, debug: bool = False) -> None:
        self.data = bytearray()
        self.debug = debug
        self.fdes: list[tuple[int, int]] = []  # location, offset
        self._encodings: dict[int, tuple[int, bool]] = {}

    def cie(
        self,
        program: bytes = b"\x0c\x07\x08\x90\x01",  # def_cfa rsp 8; offset ra 1
        augmentation: bytes = b"zR",
        data: bytes = b"\x1b",
        encoding: int = 0x1B,
        version: int = 1,
        factors: tuple[int, int] = (1, -8),
    ) -> int:
        """Returns its offset. `encoding` is what FDEs of it are written in; `data` what the CIE says."""
        offset = len(self.data)
        self._encodings[offset] = (encoding, augmentation[:1] == b"z")
        body = struct.pack("<I", 0xFFFFFFFF if self.debug else 0) + bytes([version]) + augmentation + b"\0"
        if version == 4:
            body += b"\x08\0"
        body += uleb(factors[0]) + sleb(factors[1]) + b"\x10"
        if augmentation[:1] == b"z":
            body += uleb(len(data)) + data
        self._add(body + program)
        return offset

    def fde(self, cie: int, start: int, size: int, program: bytes) -> None:
        offset = len(self.data)
        self.fdes.append((start, offset))
        at = offset + 4
        encoding, augmented = self._encodings[cie]
        code = {0: "Q", 2: "H", 3: "I", 4: "Q", 10: "h", 11: "i", 12: "q"}[encoding & 15]
        location = start - (EH_FRAME + at + 4) if encoding & 0x70 == 0x10 else start
        body = struct.pack("<I" + code + code.upper(), cie if self.debug else at - cie, location, size)
        self._add(body + (b"\0" if augmented else b"") + program)

    def _add(self, body: bytes) -> None:
        body += bytes(-len(body) % 4)
        self.data += struct.pack("<I", len(body)) + body

    def header(self) -> bytes:
        """.eh_frame_hdr."""
        content = b"\x01\x1b\x03\x3b" + struct.pack("<iI", EH_FRAME - EH_FRAME_HDR - 4, len(self.fdes))
        for start, offset in sorted(self.fdes):
            content += struct.pack("<ii", start - EH_FRAME_HDR, EH_FRAME + offset - EH_FRAME_HDR)
        return content

    def elf(self, with_header: bool = True) -> bytes:
        if self.debug:
            return elf_file({".debug_frame": (0, bytes(self.data))})
        sections = {".eh_frame": (EH_FRAME, bytes(self.data))}
        return elf_file(sections | ({".eh_frame_hdr": (EH_FRAME_HDR, self.header())} if with_header else {}))


def elf_file(sections: dict[str, tuple[int, bytes]], machine: int = 62, kind: int = 3) -> bytes:
    """One executable segment at CODE, whose bytes are not in the file, and these sections (address, content)."""
    names, offsets = b"\0", {}
    content = bytearray(struct.pack("<IIQQQQQQ", 1, 5, 0, CODE, CODE, 0, _CODE_SIZE, 4096))
    for name, (_, data) in {**sections, ".shstrtab": (0, b"")}.items():
        offsets[name] = (len(names), 64 + len(content))
        names += name.encode() + b"\0"
        content += data
    content += names
    headers = bytes(64)
    for name, (address, data) in {**sections, ".shstrtab": (0, names)}.items():
        headers += struct.pack("<IIQQQQIIQQ", offsets[name][0], 1, 2, address, offsets[name][1], len(data), 0, 0, 8, 0)
    count = len(sections) + 2
    at = 64 + len(content)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, at, 0, 64, 56, 1, 64, count, count - 1)
    return header + bytes(content) + headers


def decode(content: bytes, folder: Path) -> CallFrames:
    path = folder / "image"
    path.write_bytes(content)
    with ElfImage.open(str(path)) as image:
        return read_call_frames(image)
