"""Functions that stacks ended in have their rules before all of a file has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bpfprof.code.partial_table import PartialTable
from bpfprof.elf.effort import THOROUGH, Effort
from bpfprof.elf.image import ElfImage
from bpfprof.unwind.cache import decode_rows
from bpfprof.unwind.rows import FileRows, find
from tests.unit.elf.code_builder import FIRST, code_file
from tests.unit.elf.test_handwritten_code import assembled

COUNT = 40
pytestmark = pytest.mark.skipif(shutil.which("as") is None or shutil.which("objcopy") is None, reason="no binutils")


def test_what_stacks_ended_in_comes_first(tmp_path: Path) -> None:
    code = assembled("push %rax\nnop\npop %rax\nret\n.fill 12, 1, 0xcc\n", tmp_path)
    (tmp_path / "library").write_bytes(code_file([code] * COUNT))
    published: list[tuple[FileRows, list[int]]] = []

    def publish(rows: FileRows, rules) -> None:  # type: ignore[no-untyped-def]
        published.append((rows, rules["cfa_offset"].tolist()))

    with ElfImage.open(str(tmp_path / "library")) as image:
        table = PartialTable(image, *decode_rows(image, Effort(1, 1, 1, 1)))
        assert not table.rows.is_whole
        wanted = [FIRST + number * len(code) + 1 for number in (3, 4, 20)]
        assert [table.want(address) for address in wanted] == [True, False, False]
        assert not any(table.want(address) for address in wanted)  # they are under way
        assert not table.follow(publish)
        ((rows, offsets),) = published
        whole, rules = decode_rows(image, THOROUGH)
        for number in range(COUNT):
            for at in range(FIRST + number * len(code), FIRST + (number + 1) * len(code)):
                expected = rules["cfa_offset"][find(whole, at)] if number in (3, 4, 20) else 0
                assert offsets[find(rows, at)] == expected, (number, at)
        assert not table.want(FIRST + 3 * len(code) + 2)  # it has its rule
        assert table.want(FIRST + 5 * len(code))
        table.replace(lambda: published.clear())
        table.follow(publish)  # behind the whole table nothing comes
        assert not published


def test_what_cannot_be_followed_is_left(tmp_path: Path) -> None:
    (tmp_path / "library").write_bytes(code_file([b"\x06" * 32] * COUNT))
    with ElfImage.open(str(tmp_path / "library")) as image:
        table = PartialTable(image, *decode_rows(image, Effort(1, 1, 1, 1)))
        for address in (FIRST + 5, FIRST + COUNT * 32 + 4096, 0):
            assert table.want(address)
            assert not table.follow(lambda *_: pytest.fail("nothing is new"))
            assert not table.want(address)


def test_a_table_is_not_made_anew_without_end(tmp_path: Path) -> None:
    code = assembled("push %rax\nnop\npop %rax\nret\n.fill 12, 1, 0xcc\n", tmp_path)
    (tmp_path / "library").write_bytes(code_file([code] * 100))
    rounds = 0
    with ElfImage.open(str(tmp_path / "library")) as image:
        table = PartialTable(image, *decode_rows(image, Effort(1, 1, 1, 1)))
        for number in range(100):
            if table.want(FIRST + number * len(code)):
                rounds += 1
                assert not table.follow(lambda *_: None)
    assert rounds == 64
