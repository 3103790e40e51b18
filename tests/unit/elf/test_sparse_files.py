"""What a look at one file reads is bounded, whatever the file says; and what a sound file has is found still."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bpfprof.elf.symbols.reader import read_symbols
from tests.unit.elf.sparse_files import DEFINED, UNDEFINED, Reads, sparse_file, symbol
from tests.unit.measured import least_cpu_s

MIB = 1 << 20
BASE = MIB  # where the tables are
LIMIT = 130 * MIB  # 128 and the headers
STRTAB, SYMTAB, STRSZ, GNU_HASH = 5, 6, 10, 0x6FFFFEF5  # Elf64_Dyn
NAMES = b"\0" + b"_PyRuntime\0" * 16
KINDS = ["symtab", "dynsym"]


def tables(kind: str, names: bytes, size: int) -> dict[str, Any]:
    """Strings at BASE, symbols behind them, as the section headers or the dynamic section tell them."""
    table = (2 * BASE, size - size % 24)
    if kind == "symtab":
        return {"sections": [(".symtab", 2, table, 2), (".strtab", 3, (BASE, len(names)), 0)]}
    return {"tags": {STRTAB: BASE, STRSZ: len(names), SYMTAB: 2 * BASE, GNU_HASH: 2 * BASE + table[1]}}


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_table_and_many_places_of_the_name(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sparse_file(tmp_path / "python3.99", 300 * MIB, {BASE: NAMES}, **tables(kind, NAMES, 250 * MIB)) as image:
        reads = Reads(monkeypatch)
        assert image.find_symbol("_PyRuntime") is None
        assert reads.bytes < LIMIT


@pytest.mark.parametrize("kind", KINDS)
def test_many_names(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share one bound."""
    names = b"\0" + b"".join(b"f%d\0" % number for number in range(12))
    with sparse_file(tmp_path / "a", 130 * MIB, {BASE: names}, **tables(kind, names, 100 * MIB)) as image:
        reads = Reads(monkeypatch)
        assert not any(image.find_symbol(f"f{number}") for number in range(12))
        assert reads.bytes < LIMIT


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_a_large_sound_file_are_all_found(kind: str, tmp_path: Path) -> None:
    """With 40 MB of names, as a program has that everything was linked into."""
    names = b"\0" + b"".join(b"name%d\0" % number for number in range(8))
    at = [names.index(b"name%d" % number) for number in range(8)]
    table, strings = (2 * BASE, 24 * 8), (3 * BASE, 40 * MIB)
    contents = {strings[0]: names, table[0]: b"".join(symbol(place, value=place) for place in at)}
    sections = [(".symtab", 2, table, 2), (".strtab", 3, strings, 0)]
    tags = {STRTAB: strings[0], STRSZ: strings[1], SYMTAB: table[0], GNU_HASH: table[0] + table[1]}
    how: dict[str, Any] = {"tags": tags} if kind == "dynsym" else {"sections": sections}
    with sparse_file(tmp_path / "a", 50 * MIB, contents, **how) as image:
        found = [image.find_symbol(f"name{number}") for number in range(8)]
        assert [each and each.address for each in found] == at


@pytest.mark.parametrize("kind", KINDS)
def test_large_strings_without_the_name(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strings = (3 * BASE, 250 * MIB)
    tags = {STRTAB: strings[0], STRSZ: strings[1], SYMTAB: 2 * BASE}
    sections = [(".symtab", 2, (2 * BASE, 24), 2), (".strtab", 3, strings, 0)]
    how: dict[str, Any] = {"tags": tags} if kind == "dynsym" else {"sections": sections}
    with sparse_file(tmp_path / "a", 300 * MIB, {}, **how) as image:
        reads = Reads(monkeypatch)
        assert image.find_symbol("_PyRuntime") is None and image.find_symbol("other") is None
        assert reads.bytes < LIMIT
        assert not list(image.dynamic_functions({b"cu"}))
        assert reads.bytes < LIMIT


@pytest.mark.parametrize("kind", KINDS)
def test_a_symbol_is_found_at_any_place_of_its_name(kind: str, tmp_path: Path) -> None:
    """Listed as one that is used, then defined far behind, by the tail of a longer name."""
    names = b"\0_PyRuntime\0its_PyRuntime\0"
    entries = {24: symbol(1, UNDEFINED), 24 * 200_000: symbol(names.index(b"_PyRuntime", 5), DEFINED, 0x4321)}
    contents = {BASE: names, **{2 * BASE + offset: entry for offset, entry in entries.items()}}
    with sparse_file(tmp_path / "a", 20 * MIB, contents, **tables(kind, names, 10 * MIB)) as image:
        found = image.find_symbol("_PyRuntime")
        assert found is not None and (found.address, found.size) == (0x4321, 8)
        assert image.find_symbol("_PyRunti") is None and image.find_symbol("its_PyRuntime") is None


def test_functions_with_wanted_initials_are_so_many(tmp_path: Path) -> None:
    names, count = b"\0cuLaunch\0", 10_000
    contents = {BASE: names, 2 * BASE: b"".join(symbol(1, value=number) for number in range(count))}
    with sparse_file(tmp_path / "libcuda.so", 4 * MIB, contents, **tables("dynsym", names, 24 * count)) as image:
        assert list(image.dynamic_functions({b"hi", b"cu"})) == [("cuLaunch", number) for number in range(4096)]
        assert not list(image.dynamic_functions({b"nc"}))


def test_several_tables_share_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four headers of one hole."""
    table = (".symtab", 2, (2 * BASE, 24 * 5 * MIB), 5)
    sections = [table, table, table, table, (".strtab", 3, (BASE, 16), 0)]
    loads = ((0, 1 << 40, 5),)
    with sparse_file(tmp_path / "a", 200 * MIB, {}, loads=loads, sections=sections) as image:
        reads = Reads(monkeypatch)
        assert read_symbols(image).problems == ("too many symbols: not all are used",) * 3
        assert reads.bytes < LIMIT


def test_a_hash_chain_without_an_end_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many segments there are to look for each link."""
    gnu_hash = b"".join(number.to_bytes(4, "little") for number in (1, 1, 0, 0, 1))  # one bucket, of symbol 1 on
    names = b"\0first\0"
    contents = {BASE: names, 2 * BASE: bytes(24) + symbol(1, value=0x100), 3 * BASE: gnu_hash}
    tags = {STRTAB: BASE, STRSZ: len(names), SYMTAB: 2 * BASE, GNU_HASH: 3 * BASE}
    with sparse_file(tmp_path / "a", 8 * MIB, contents, loads=((0, 1 << 40, 5),), tags=tags) as image:
        reads = Reads(monkeypatch)
        table = read_symbols(image)
        assert reads.count < 50 and len(table) == 1 and table.names(table.find(table.starts)) == ["first"]


@pytest.mark.second_tier
@pytest.mark.parametrize("kind", KINDS)
def test_a_look_takes_little_time(kind: str, tmp_path: Path) -> None:
    def look() -> None:
        with sparse_file(tmp_path / "a", 300 * MIB, {BASE: NAMES}, **tables(kind, NAMES, 250 * MIB)) as image:
            assert image.find_symbol("_PyRuntime") is None

    assert least_cpu_s(look, 0.2) < 0.2  # 8 s with a search for each place
