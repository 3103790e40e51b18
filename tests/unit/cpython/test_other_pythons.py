"""What tells PyPy and others from CPython, and where the evaluation loop is, costs little whatever a file says."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bpfprof.cpython.eval_ranges import EVAL_FUNCTION, eval_ranges
from bpfprof.cpython.other_pythons import other_python
from bpfprof.elf.cfi.rules import CallFrames
from bpfprof.elf.image import ElfImage, ElfSection
from bpfprof.model.ids import ElfAddress, FileOffset
from tests.unit.elf.sparse_files import Reads, sparse_file, symbol

MIB = 1 << 20
STRTAB, SYMTAB, STRSZ = 5, 6, 10  # Elf64_Dyn
HEAD = (0, 1 << 17, 5)
Loads = list[tuple[int, int, int]]  # offset, size, flags


def library(
    path: Path, name: str, loads: list[tuple[int, int, int]], contents: dict[int, bytes], size: int
) -> ElfImage:
    """It exports a function of this name."""
    names, strings, table = b"\0" + name.encode() + b"\0", 1 << 16, (1 << 16) + 4096
    contents |= {strings: names, table: bytes(24) + symbol(1, value=0x1000)}
    tags = {STRTAB: strings, STRSZ: len(names), SYMTAB: table, 4: table + 48}
    return sparse_file(path, size, contents, loads=[HEAD, *loads], tags=tags)


def pypy(path: Path, loads: Loads, text: bytes = b"") -> ElfImage:
    return library(path, "pypy_main_startup", loads, {MIB: text}, 100 * MIB)


@pytest.mark.parametrize(
    "text, name",
    [
        (b"3.9.16 [PyPy 7.3.11 with GCC", "PyPy 7.3.11"),
        (b"[PyPy %s\0[PyPy 7.3.20-beta0]", "PyPy 7.3.20-beta0"),
        (b"[PyPy 7", "PyPy"),
        (b"[PyPy 7" * 1000, "PyPy"),
        (b"", "PyPy"),
    ],
)
def test_pypy_by_its_data(tmp_path: Path, text: bytes, name: str) -> None:
    with pypy(tmp_path / "lib.so", [(MIB, 1 << 16, 6)], text) as image:
        assert other_python(image, "/lib/lib.so") == name


@pytest.mark.parametrize("flags", [4, 6])
def test_many_segments_of_one_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int) -> None:
    with pypy(tmp_path / "lib.so", [(MIB, 60 * MIB, flags)] * 120) as image:
        reads = Reads(monkeypatch)
        assert other_python(image, "/lib/lib.so") == "PyPy"
        assert reads.bytes < 66 * MIB


def test_many_segments_and_many_relocations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each relocation is looked at for each segment."""
    relative = {2 * MIB: struct.pack("<QQq", 0, 8, 0) * 100_000}
    with library(tmp_path / "a", EVAL_FUNCTION, [(MIB, 8, 6)] * 120, relative, 16 * MIB) as image:
        relocations = ElfSection(ElfAddress(0), FileOffset(2 * MIB), len(relative[2 * MIB]))
        monkeypatch.setattr(image, "section", {".rela.dyn": relocations}.get)
        reads = Reads(monkeypatch)
        eval_ranges(image, frames=CallFrames())
        assert reads.count < 50
