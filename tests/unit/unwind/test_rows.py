"""Compact rows against the rows they were made of, at every address."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bpfprof import abi
from bpfprof.elf.cfi.rules import RULE, RULE_LIMIT, CfaKind, FramePointerKind, Rules
from bpfprof.elf.cfi.tables import CallFrames, read_call_frames
from bpfprof.elf.image import ElfImage
from bpfprof.unwind.rows import RULE_MASK, FileRows, RuleTable, compact, expanded, find


def frames_of(pairs: list[tuple[int, int]], rule_count: int = 8) -> CallFrames:
    none = np.zeros(0, np.uint64)
    address = np.array([pair[0] for pair in pairs], np.uint64)
    rule = np.array([pair[1] for pair in pairs], np.uint16)
    return CallFrames(address, rule, some_rules(rule_count), none, none, len(pairs), {})


def some_rules(count: int, first_offset: int = 0) -> Rules:
    rules = np.zeros(count, RULE)
    rules["cfa_offset"] = np.arange(count) * 8 + first_offset
    rules["cfa_kind"] = CfaKind.RSP
    rules[0] = 0
    rules[1] = (CfaKind.UNSUPPORTED, 0, 0, 0, 0, 0, 0)
    return rules


PAIRS = {
    "one page": [(0x1000, 2), (0x1010, 3), (0x1FFF, 0)],
    "page ends": [(0x1FFF, 2), (0x2000, 3), (0x2001, 0)],
    "empty pages between": [(0x1234, 2), (0x5008, 3), (0x5009, 0)],
    "not at the beginning of a page": [(0x10FF0, 4), (0x12010, 0)],
    "every address of a page": [(0x3000 + index, 2 + index % 2) for index in range(4096)] + [(0x4000, 0)],
    "high": [(0x7FFF_FFFF_F000, 5), (0x7FFF_FFFF_FFFF, 0)],
}


@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS)
def test_every_address_finds_its_row(pairs: list[tuple[int, int]]) -> None:
    table = compact(frames_of(pairs))
    starts = [pair[0] for pair in pairs]
    for address in {near for start in starts for near in (start - 1, start, start + 1, start + 0x1000, start - 0x1000)}:
        before = [rule for start, rule in pairs if start <= address]
        assert find(table, address) == (before[-1] if before else 0), hex(address)


def test_nothing_is_found_in_nothing() -> None:
    table = compact(frames_of([]))
    assert [find(table, address) for address in (0, 1, 0x1000, 2**63, -1)] == [0] * 5


def test_a_real_library() -> None:
    path = Path("/lib/x86_64-linux-gnu/libc.so.6")
    if not path.is_file():
        pytest.skip("no libc at its Debian place")
    with ElfImage.open(str(path)) as image:
        frames = read_call_frames(image)
    shared = RuleTable()
    table = shared.adopt(compact(frames), frames.rules)
    records = shared.records
    rng = np.random.default_rng(1)
    sample = rng.integers(int(frames.address[0]) - 5000, int(frames.address[-1]) + 5000, 5000).astype(np.uint64)
    for address in np.concatenate((sample, frames.address[:3000])).tolist():
        index = int(np.searchsorted(frames.address, np.uint64(address), side="right")) - 1
        expected = frames.rules[frames.rule[index]] if index >= 0 else frames.rules[0]
        assert records[find(table, address)] == expected
    assert int(np.diff(table.pages).max()) < 1024  # ten steps


def test_rules_are_shared() -> None:
    shared = RuleTable()
    first, second = compact(frames_of([(0, 2), (8, 3)])), compact(frames_of([(0, 2), (8, 3)]))
    one, two = shared.adopt(first, some_rules(8)), shared.adopt(second, some_rules(8, first_offset=8))
    assert len(shared) == len(RuleTable()) + 6 + 1  # those every table has, six of the first file, one more
    assert shared.records[find(one, 8)]["cfa_offset"] == 24 and shared.records[find(two, 0)]["cfa_offset"] == 24
    assert find(one, 8) == find(two, 0)
    assert first.rows.tolist() == compact(frames_of([(0, 2), (8, 3)])).rows.tolist()


def test_ids_never_change() -> None:
    shared = RuleTable()
    before = shared.intern(some_rules(100)).tolist()
    shared.intern(some_rules(100, first_offset=4))
    assert shared.intern(some_rules(100)).tolist() == before
    assert shared.records[:2]["cfa_kind"].tolist() == [CfaKind.NO_RULE, CfaKind.UNSUPPORTED]


def test_code_without_a_table_is_left_by_its_frame_pointer() -> None:
    shared = RuleTable()
    rule = shared.records[abi.CONSTANTS["BP_RULE_FRAME_POINTER"]]
    assert (rule["cfa_kind"], rule["cfa_offset"], rule["ra_offset"]) == (CfaKind.RBP, 16, -8)
    assert (rule["fp_kind"], rule["fp_offset"]) == (FramePointerKind.AT_CFA, -16)


def test_a_file_that_says_the_same_is_not_taken_for_one_without_a_table() -> None:
    """Code that keeps a frame pointer has this very rule in its table; it is not guessed there."""
    shared = RuleTable()
    rules = some_rules(3)
    rules[2] = (CfaKind.RBP, FramePointerKind.AT_CFA, 0, 0, 16, -16, -8)
    assert shared.intern(rules)[2] >= len(RuleTable())


def test_a_full_table_gives_no_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(abi.CONSTANTS, "BP_MAX_RULES", 10)
    shared = RuleTable()
    own = len(shared)
    ids = shared.intern(some_rules(20))
    assert len(shared) == len(shared.records) == 10
    assert ids.tolist() == [0, 1, *range(own, 10), *[1] * (20 - 2 - (10 - own))]


def test_a_row_has_room_for_every_rule_of_a_file() -> None:
    assert RULE_LIMIT <= RULE_MASK + 1 and abi.CONSTANTS["BP_MAX_RULES"] <= RULE_MASK + 1
    table = FileRows(0, np.array([1, 2], np.uint32), np.array([0, 0xFFF << 20 | RULE_MASK], np.uint32))
    assert find(table, 0xFFF) == RULE_MASK and find(table, 0xFFE) == 0


@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS)
def test_rows_that_are_taken_apart_are_what_they_were(pairs: list[tuple[int, int]]) -> None:
    address, rule = expanded(compact(frames_of(pairs)))
    assert list(zip(address.tolist(), rule.tolist())) == pairs
