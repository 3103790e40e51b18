"""Symbols that are kept between runs: the same as those that are read, and never those of another file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from bpfprof import private_cache
from bpfprof.elf.image import ElfImage
from bpfprof.elf.symbols import kept
from bpfprof.elf.symbols.kept import kept_symbols
from bpfprof.elf.symbols.reader import read_symbols
from bpfprof.elf.symbols.table import SymbolTable

PROGRAM = os.path.realpath(sys.executable)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(kept, "_LARGE_BYTES", 0)
    return tmp_path / "cache" / "symbols"


def told(table: SymbolTable) -> list[tuple[str, int]]:
    """At some hundred addresses in functions and between them."""
    random = np.random.default_rng(1)
    addresses = random.integers(int(table.starts[0]) - 100, int(table.ends[-1]) + 100, 500).astype(np.uint64)
    places = table.find(np.sort(addresses))
    return list(zip(table.names(places), places.tolist()))


def test_they_are_what_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ElfImage.open(PROGRAM) as image:
        expected = told(read_symbols(image))
        assert len({name for name, _ in expected}) > 50
        assert told(kept_symbols(image)) == expected
        assert len(list(folder.iterdir())) == 1
        monkeypatch.setattr(kept, "read_symbols", lambda *_: pytest.fail("they were kept"))
        assert told(kept_symbols(image)) == expected


def test_those_of_small_files_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_LARGE_BYTES", 1 << 30)
    with ElfImage.open(PROGRAM) as image:
        assert told(kept_symbols(image)) == told(read_symbols(image))
    assert not folder.exists()


def test_a_file_with_other_symbols_has_its_own(folder: Path, tmp_path: Path) -> None:
    """Of the same build id, size and owner."""
    content = bytearray(Path(PROGRAM).read_bytes())
    with ElfImage.open(PROGRAM) as image:
        kept_symbols(image)
        table = image.section(".symtab") or image.section(".dynsym")
        assert table is not None
    for at in range(table.offset, table.offset + table.size, 24):
        content[at + 8] ^= 0x40  # of each symbol's address
    (tmp_path / "other").write_bytes(content)
    os.chown(tmp_path / "other", os.stat(PROGRAM).st_uid, -1)
    with ElfImage.open(str(tmp_path / "other")) as other, ElfImage.open(PROGRAM) as image:
        assert told(kept_symbols(other)) == told(read_symbols(other)) != told(read_symbols(image))


@pytest.mark.parametrize("damage", ["nothing", "version", "cut", "counts", "names", "texts"])
def test_what_is_damaged_is_read_again(damage: str, folder: Path) -> None:
    """Also where a checksum says that it is not."""
    with ElfImage.open(PROGRAM) as image:
        expected = told(kept_symbols(image))
        (path,) = folder.iterdir()
        cache = private_cache.PrivateCache("symbols", 1 << 26)
        content = bytearray(cache.load(path.name) or b"")
        at = 16  # behind the hash
        if damage == "version":
            content[at] ^= 1
        elif damage == "cut":
            del content[-8:]
        elif damage == "counts":
            content[at + 12] ^= 1
        elif damage in ("names", "texts"):  # the last columns: which symbols an address has, and how many
            count = int.from_bytes(content[at + 16 : at + 20], "little")
            begin = len(content) - count * (16 if damage == "names" else 12)
            content[begin : begin + 4] = b"\xff\xff\xff\x7f"
        cache.store(path.name, bytes(content))
        assert told(kept_symbols(image)) == expected


def test_of_a_file_without_symbols(folder: Path, tmp_path: Path) -> None:
    content = bytearray(Path(PROGRAM).read_bytes())
    content[40:48] = bytes(8)  # e_shoff: it has no section headers
    content[60:62] = bytes(2)
    with ElfImage.from_bytes(bytes(content), "bare") as image:
        assert len(kept_symbols(image)) == len(read_symbols(image))
