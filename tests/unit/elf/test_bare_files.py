"""Files that are in no file system, and files without section headers."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from bpfprof.elf.cfi.rules import CfaKind
from bpfprof.elf.cfi.tables import CallFrames, read_call_frames
from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.elf.symbols.reader import read_symbols
from tests.unit.elf.frame_builder import CODE, EH_FRAME, EH_FRAME_HDR, FrameBuilder, elf_file
from tests.unit.elf.seed_files import without_section_headers
from tests.unit.measured import no_descriptor_more

_PT_LOAD, _PT_GNU_EH_FRAME = 1, 0x6474E550
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr


def vdso() -> bytes:
    """Of this process."""
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
        found = [line.split()[0].split("-") for line in maps if line.endswith("[vdso]\n")]
        if not found or os.uname().machine != "x86_64":
            pytest.skip("no vdso for x86-64")
        start, end = (int(number, 16) for number in found[0])
        memory.seek(start)
        return memory.read(end - start)


def frames_of(content: bytes) -> CallFrames:
    with ElfImage.from_bytes(content, "test") as image:
        return read_call_frames(image)


def assert_same(first: CallFrames, second: CallFrames) -> None:
    assert np.array_equal(first.address, second.address)
    assert np.array_equal(first.rules[first.rule], second.rules[second.rule])
    assert np.array_equal(first.function_starts, second.function_starts)
    assert np.array_equal(first.function_ends, second.function_ends)
    assert (first.function_count, first.reasons) == (second.function_count, second.reasons)


@pytest.mark.parametrize("bare", [False, True], ids=["whole", "without section headers"])
def test_the_vdso_of_this_process(bare: bool) -> None:
    content = without_section_headers(vdso()) if bare else vdso()
    with ElfImage.from_bytes(content, "[vdso]") as image:
        symbol = image.find_symbol("__vdso_clock_gettime")
        assert symbol is not None and symbol.size > 0
        frames = read_call_frames(image)
    addresses = np.arange(symbol.address, symbol.address + symbol.size, dtype=np.uint64)
    kinds = frames.rules["cfa_kind"][frames.rule[np.searchsorted(frames.address, addresses, side="right") - 1]]
    assert set(kinds.tolist()) <= {CfaKind.RSP, CfaKind.RBP, CfaKind.REGISTER}
    with ElfImage.from_bytes(content, "[vdso]") as image:
        table = read_symbols(image)
        names = set(table.names(table.find(addresses)))
    assert names and names <= {"__vdso_clock_gettime", "clock_gettime"}


def test_what_from_bytes_makes_cannot_be_changed() -> None:
    content = FrameBuilder().elf()
    with ElfImage.from_bytes(content, "a name\0" + "\u20ac" * 300) as image:
        assert image.file_size == len(content) and image.read_at(0, len(content)) == content
        fd = os.open(f"/proc/self/fd/{image._fd}", os.O_RDWR)
        for change in (lambda: os.write(fd, b"x"), lambda: os.truncate(fd, 5), lambda: os.truncate(fd, 1 << 20)):
            with pytest.raises(OSError):
                change()
        os.close(fd)


def test_from_bytes_leaves_no_descriptor_behind() -> None:
    with no_descriptor_more():
        for content in (b"", b"\x7fELF", bytes(100)):
            with pytest.raises(ElfError):
                ElfImage.from_bytes(content, "")


def real_files() -> dict[str, Path]:
    found = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "/libc.so.6" in line:
                found["libc"] = Path(line.split()[-1])
    pythons = sorted(Path.home().glob(".pyenv/versions/3.1*/lib/libpython3.1*.so.1.0"))
    pythons += sorted(Path(sysconfig.get_config_var("LIBDIR") or "/nowhere").glob("libpython3*.so.1.0"))
    found |= dict(zip(["libpython"], reversed(pythons)))
    return found | {"python": Path(os.path.realpath(sys.executable))}


REAL_FILES = real_files()


@pytest.mark.parametrize("path", REAL_FILES.values(), ids=REAL_FILES)
def test_section_headers_make_no_difference(path: Path) -> None:
    content = path.read_bytes()
    whole, bare = frames_of(content), frames_of(without_section_headers(content))
    assert whole.function_count > 0
    assert_same(whole, bare)


def with_segment(builder: FrameBuilder, header: bytes, tail: bytes = b"") -> bytes:
    """No sections, but a segment with .eh_frame, then `tail`; PT_GNU_EH_FRAME is at EH_FRAME_HDR."""
    frame = bytes(builder.data) + tail
    at = 64 + 3 * _PROGRAM_HEADER.size
    segments = (
        (_PT_LOAD, 5, 0, CODE, CODE, 0, 0x100000, 16),
        (_PT_LOAD, 4, at, EH_FRAME, EH_FRAME, len(frame), len(frame), 16),
        (_PT_GNU_EH_FRAME, 4, at + len(frame), EH_FRAME_HDR, EH_FRAME_HDR, len(header), len(header), 4),
    )
    start = bytearray(elf_file({})[:64])
    start[56:58] = len(segments).to_bytes(2, "little")  # e_phnum
    table = b"".join(_PROGRAM_HEADER.pack(*segment) for segment in segments)
    return without_section_headers(bytes(start)) + table + frame + header


def some_functions() -> FrameBuilder:
    builder = FrameBuilder()
    cie = builder.cie()
    for index in range(5):
        builder.fde(cie, CODE + index * 0x100, 0x80, b"\x41\x0e\x10")
    return builder


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_dynamic_symbols_need_no_section_headers(style: str, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    functions = "".join(f"int f{number}(void) {{ return {number}; }}\n" for number in range(50))
    (tmp_path / "a.c").write_text(f"int puts(const char *);\n{functions}int g(void) {{ return puts(0); }}\n")
    command = ["gcc", "-shared", "-fPIC", "-s", f"-Wl,--hash-style={style}", "-o", str(tmp_path / "a.so")]
    subprocess.run([*command, str(tmp_path / "a.c")], check=True)
    content = (tmp_path / "a.so").read_bytes()
    found = []
    for data in (content, without_section_headers(content)):
        with ElfImage.from_bytes(data, "a.so") as image:
            table = read_symbols(image)
            found.append(dict(zip(table.starts.tolist(), table.names(np.arange(len(table))))))
    assert found[0] == found[1] and {f"f{number}" for number in range(50)} <= set(found[0].values())


NO_TABLE = b"\x01\x1b\xff\xff"


@pytest.mark.parametrize("tail", [b"", bytes(4), bytes(4) + b"\xff\xff\xff\x01" * 20], ids=["cut", "zero", "other"])
@pytest.mark.parametrize("has_table", [True, False])
def test_where_the_section_ends(tail: bytes, has_table: bool) -> None:
    builder = some_functions()
    header = builder.header() if has_table else NO_TABLE + builder.header()[4:8]
    assert_same(frames_of(builder.elf()), frames_of(with_segment(builder, header, tail)))


def test_a_header_that_leads_nowhere() -> None:
    builder = some_functions()
    header = builder.header()
    for damaged in (b"", header[:4], b"\x02" + header[1:], header[:1] + b"\x00" + header[2:], header[:7] + b"\x7f"):
        assert frames_of(with_segment(builder, damaged)).function_count == 0
    last = header[:-4] + b"\xff\xff\xff\x7f"  # an FDE behind the segment: the records are walked
    assert frames_of(with_segment(builder, last)).function_count == 5
