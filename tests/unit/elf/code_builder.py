"""ELF files with machine code of functions that have a symbol but no FDE, built in memory."""

from __future__ import annotations

import struct

from tests.unit.elf.frame_builder import CODE, EH_FRAME, FrameBuilder

FIRST = CODE + 16  # the ELF address of the first function
_FILE_OFFSET = 4096


def code_file(functions: list[bytes], written: list[bytes] | None = None) -> bytes:
    """One function behind another from FIRST on, then those that have an FDE which says that nothing ever moves."""
    bare = b"".join(functions)
    code = b"\xcc" * 16 + bare + b"".join(written or []) + b"\xcc" * 16
    builder = FrameBuilder()
    cie = builder.cie()
    builder.fde(cie, CODE, 16, b"")
    at = FIRST + len(bare)
    for function in written or []:
        builder.fde(cie, at, len(function), b"")
        at += len(function)
    builder.fde(cie, CODE + len(code) - 16, 16, b"")
    symbols, at = bytearray(24), FIRST
    for function in functions:
        symbols += struct.pack("<IBBHQQ", 1, 0x12, 0, 1, at, len(function))  # a global function of section 1
        at += len(function)
    names = b"\0.text\0.eh_frame\0.symtab\0.strtab\0"
    sections = [  # name, type, flags, address, content, link
        (1, 1, 6, CODE, code, 0),
        (7, 1, 2, EH_FRAME, bytes(builder.data), 0),
        (17, 2, 0, 0, bytes(symbols), 4),
        (25, 3, 0, 0, b"\0f\0", 0),
        (25, 3, 0, 0, names, 0),
    ]
    content, headers = bytearray(), bytes(64)
    for name, kind, flags, address, data, link in sections:
        place = _FILE_OFFSET + len(content)
        size = 24 if kind == 2 else 0
        headers += struct.pack("<IIQQQQIIQQ", name, kind, flags, address, place, len(data), link, 0, 8, size)
        content += data
    program = struct.pack("<IIQQQQQQ", 1, 5, _FILE_OFFSET, CODE, CODE, len(code), len(code), 4096)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    end = _FILE_OFFSET + len(content)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, end, 0, 64, 56, 1, 64, 6, 5)
    return (header + program).ljust(_FILE_OFFSET, b"\0") + bytes(content) + headers
