"""Rows of large files where they are asked for: what a whole table has there, and nothing said of the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bpfprof import private_cache
from bpfprof.elf.cfi.lookup import FrameLookup
from bpfprof.elf.cfi.rules import CallFrames, CfaKind, Rules
from bpfprof.elf.cfi.tables import read_call_frames
from bpfprof.elf.image import ElfImage
from bpfprof.elf.symbols.reader import read_symbols
from bpfprof.unwind import on_demand
from bpfprof.unwind.cache import keep, rows_on_demand
from bpfprof.unwind.on_demand import RowsOnDemand
from bpfprof.unwind.rows import UNREAD_FIELDS, FileRows, compact, find
from tests.unit.elf.frame_builder import CODE, FrameBuilder
from tests.unit.elf.test_unwritten_frames import BUILTINS
from tests.unit.unwind.test_cache import find_library

NO_RULE = (0,) * 7


@pytest.fixture(params=["the interpreter", "the C library"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ElfImage]:
    """In blocks of few functions, of which it has hundreds."""
    monkeypatch.setattr(on_demand, "_BLOCK_FUNCTIONS", 16)
    path = find_library() if request.param == "the C library" else Path(os.path.realpath(sys.executable))
    with ElfImage.open(str(path)) as image:
        yield image


def made(image: ElfImage) -> RowsOnDemand:
    found = RowsOnDemand.of(image)
    assert found is not None
    return found


def read(rows: RowsOnDemand, addresses: np.ndarray) -> None:
    rows.want(addresses)
    while rows.wanted_count:
        rows.read()


def rules_at(rows: RowsOnDemand, addresses: np.ndarray) -> list[tuple[int, ...]]:
    """As the kernel side finds them."""
    tables: list[tuple[FileRows, Rules]] = []
    rows.table(lambda table, rules: tables.append((table, rules)))
    ((table, rules),) = tables
    fields = rules.tolist()
    return [fields[find(table, address)] for address in addresses.tolist()]


def whole_rules_at(frames: CallFrames, addresses: np.ndarray) -> list[tuple[int, ...]]:
    fields = frames.rules.tolist()
    return [fields[rule] for rule in frames.rule_at(addresses.astype(np.uint64)).tolist()]


def some_addresses(image: ElfImage, count: int, seed: int) -> np.ndarray:
    """In functions with and without rules of their own, and anywhere else in the code."""
    random = np.random.default_rng(seed)
    lookup, symbols = FrameLookup.of(image), read_symbols(image)
    assert lookup is not None
    starts = np.concatenate((lookup.starts, symbols.starts.astype(np.int64)))
    near = random.choice(starts, count) + random.integers(0, 300, count)
    return np.concatenate((near, random.integers(*lookup.code, count)))


def test_what_was_asked_for_has_the_rules_of_a_whole_table(library: ElfImage) -> None:
    whole, rows = read_call_frames(library), made(library)
    asked, others = some_addresses(library, 100, 1), some_addresses(library, 3000, 2)
    assert set(rules_at(rows, asked)) <= {UNREAD_FIELDS, NO_RULE, *whole_rules_at(whole, asked)}
    read(rows, asked)
    found, expected = rules_at(rows, asked), whole_rules_at(whole, asked)
    # Where a whole table would take too long to follow all, it follows none.
    assert [at for at, one, other in zip(asked.tolist(), found, expected) if one != other and other != NO_RULE] == []
    others_found = rules_at(rows, others)
    assert {UNREAD_FIELDS} < set(others_found), "some were read, and some not"
    for at, one, other in zip(others.tolist(), others_found, whole_rules_at(whole, others)):
        assert one in (other, UNREAD_FIELDS) or other == NO_RULE, hex(at)


def test_code_without_rules_of_its_own_is_followed_when_it_is_asked_for() -> None:
    """OpenBLAS's assembly, and what its whole table has of it."""
    (path,) = Path(np.__file__).parents[1].glob("numpy.libs/libscipy_openblas*")
    with ElfImage.open(str(path)) as image:
        lookup, symbols, whole = FrameLookup.of(image), read_symbols(image), read_call_frames(image)
        assert lookup is not None
        written = lookup.frames(lookup.starts)
        bare = symbols.starts[written.rule_at(symbols.starts) == 0]
        bare = bare[whole.rule_at(bare) != 0].astype(np.int64)
        assert len(bare) > 100
        bare, rows = bare[:: len(bare) // 100], made(image)
        read(rows, bare)
        assert rules_at(rows, bare + 1) == whole_rules_at(whole, bare + 1)


def test_what_is_known_is_not_wanted_again(library: ElfImage) -> None:
    rows, asked = made(library), np.unique(some_addresses(library, 50, 3))
    assert 0 < rows.want(asked) <= len(asked)
    assert rows.want(asked) == 0, "it is wanted already"
    while rows.wanted_count:
        rows.read()
    assert rows.want(asked) == 0
    assert rows.want(np.array([-1, 0, 1 << 60])) == 0, "that is not in its code"


def test_the_next_run_begins_with_what_was_read(
    library: ElfImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path / "cache")
    asked = some_addresses(library, 50, 4)
    rows = rows_on_demand(library, library.status())
    assert rows is not None and not rows.new_count
    read(rows, asked)
    assert rows.new_count
    keep(rows, library, library.status())
    again = rows_on_demand(library, library.status())
    assert again is not None and not again.new_count
    many = np.concatenate((asked, some_addresses(library, 1000, 5)))
    assert rules_at(again, many) == rules_at(rows, many)
    assert again.want(asked) == 0
    whole = again.image.parts().tolist()
    assert all(any(low <= begin and end <= high for low, high in whole) for begin, end in rows.image.parts().tolist())
    more = some_addresses(library, 50, 6)
    for each in (rows, again):
        read(each, more)
    assert rules_at(again, many) == rules_at(rows, many)


@pytest.mark.parametrize("count", [3, 16, 50])
def test_what_was_kept_in_other_blocks_is_known(
    count: int, library: ElfImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a whole table, whose rows say nothing of blocks."""
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(on_demand, "_BLOCK_FUNCTIONS", count)
    whole, wanted = read_call_frames(library), some_addresses(library, 300, 8)
    rows = rows_on_demand(library, library.status())
    assert rows is not None
    read(rows, wanted[::2])
    keep(rows, library, library.status())
    monkeypatch.setattr(on_demand, "_BLOCK_FUNCTIONS", 20)
    again, of_whole = rows_on_demand(library, library.status()), made(library)
    assert again is not None and again.want(wanted[::2]) == 0
    of_whole.take(compact(whole), whole.rules)
    assert rules_at(of_whole, wanted) == whole_rules_at(whole, wanted) and of_whole.want(wanted) == 0
    read(again, wanted)
    found, expected = rules_at(again, wanted), whole_rules_at(whole, wanted)
    assert [at for at, one, other in zip(wanted.tolist(), found, expected) if one != other and other != NO_RULE] == []


def test_a_file_with_other_bytes_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same build id, size and owner."""
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path / "cache")
    content = bytearray(find_library().read_bytes())
    for turn in range(2):
        path = tmp_path / f"library{turn}"
        path.write_bytes(content)
        with ElfImage.open(str(path)) as image:
            frames = image.section(".eh_frame")
            rows = rows_on_demand(image, image.status())
            assert rows is not None and frames is not None
            asked = some_addresses(image, 20, 7)
            assert rows.want(asked) > 0, "nothing is known of it"
            read(rows, asked)
            keep(rows, image, image.status())
        content[frames.offset + frames.size - 1] ^= 1


def test_of_a_file_that_does_not_say_where_its_functions_are_there_is_none(tmp_path: Path) -> None:
    builder = FrameBuilder()
    builder.fde(builder.cie(), CODE, 0x80, b"\x41\x0e\x10")
    (tmp_path / "library").write_bytes(builder.elf(with_header=False))
    with ElfImage.open(str(tmp_path / "library")) as image:
        assert RowsOnDemand.of(image) is None


def test_builtins_of_v8_are_found_where_stacks_lead_through_one(tmp_path: Path) -> None:
    (tmp_path / "builtins.s").write_text(BUILTINS)
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-o", "a", "main.c", "builtins.s"], cwd=tmp_path, check=True)
    with ElfImage.open(str(tmp_path / "a")) as image:
        rows, whole = made(image), read_call_frames(image)
        names = ["Builtins_Zero", "Builtins_Abort", "before", "behind"]
        symbols = [symbol for name in names if (symbol := image.find_symbol(name)) is not None]
        addresses = np.array([symbol.address + 2 for symbol in symbols], np.int64)
        read(rows, addresses[:1])
        assert rules_at(rows, addresses[:2]) == whole_rules_at(whole, addresses[:2])
        assert rules_at(rows, addresses[:1])[0][0] == CfaKind.RBP
        read(rows, addresses)
        assert CfaKind.RBP not in [rule[0] for rule in rules_at(rows, addresses[2:])]
