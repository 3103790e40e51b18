"""Searches in the unwind tables, at every edge that they have: mappings, pages, rows and chunks."""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence

import numpy as np
import pytest

from bpfprof import array_types as npt
from bpfprof.elf.cfi.rules import NO_RULE_ID, RULE, CfaKind
from bpfprof.kernel.unwind_memory import MAX_MAPPINGS, UnwindMemory
from bpfprof.unwind.rows import FRAME_POINTER_ID, UNREAD_FIELDS, FileRows, find
from tests.ebpf_host.host import CONSTANTS, STATUS, Host, mapping_array

RULE_COUNT = 500
CHUNK_WORDS = CONSTANTS["BP_CHUNK_WORDS"]
START = 0x5555_0000_0000
Row = tuple[int, int, int, int]  # start, end, bias, file number


@pytest.fixture
def memory(host: Host) -> UnwindMemory:
    return host.unwind_memory()


def numbered_rules() -> npt.NDArray[np.void]:
    """Rules that all differ: rule n has cfa_offset n."""
    rules = np.zeros(RULE_COUNT, RULE)
    rules["cfa_kind"][1], rules["cfa_kind"][2:] = CfaKind.UNSUPPORTED, CfaKind.RSP
    rules["cfa_offset"][2:] = np.arange(2, RULE_COUNT)
    return rules


def file_of(pages: dict[int, Sequence[int]], seed: int = 1) -> FileRows:
    """Page -> offsets of its rows; rules are random."""
    first, last = min(pages), max(pages)
    counts = [len(pages.get(page, ())) for page in range(first, last + 1)]
    chance = np.random.default_rng(seed)
    offsets = np.concatenate([np.array(sorted(pages.get(page, ())), np.uint32) for page in range(first, last + 1)])
    rules = chance.integers(2, RULE_COUNT, len(offsets), dtype=np.uint32)
    edges = np.cumsum([1, *counts]).astype(np.uint32)
    return FileRows(first, edges, np.concatenate([np.zeros(1, np.uint32), offsets << np.uint32(20) | rules]))


def check(host: Host, index: int, mappings: Sequence[Row], tables: dict[int, FileRows], pc: int) -> int:
    """A search finds what `bisect` and `find` do; returns the enum bp_status. `mappings` are sorted."""
    position = bisect.bisect_right(mappings, pc, key=lambda item: item[0]) - 1
    mapping = mappings[position] if position >= 0 and pc < mappings[position][1] else None
    status, rule = host.find_rule(index, len(mappings), pc)
    if mapping is None:
        assert status == STATUS.BP_NATIVE_NO_MAPPING, hex(pc)
        return status
    _, _, bias, number = mapping
    expected = find(tables[number], pc - bias) if number in tables else FRAME_POINTER_ID
    if expected == NO_RULE_ID:
        assert status == STATUS.BP_NATIVE_NO_RULE, hex(pc)
    elif number in tables:
        found = host.values("rules")["cfa_offset"][rule]
        assert (status, found) == (STATUS.BP_OK, expected), hex(pc)
    else:
        assert (status, rule) == (STATUS.BP_OK, expected), hex(pc)
    return status


FILES: dict[str, dict[int, Sequence[int]]] = {
    "one row": {5: [0]},
    "one row at the end of a page": {5: [4095]},
    "two pages": {5: [16, 32], 6: [0]},
    "pages without rows": {5: [7], 9: [9, 4095], 10: [0], 12: [4000]},
    "a full page": {5: range(4096)},
    "full pages": {5: range(4096), 6: range(4096), 8: range(4096)},
    "every count": {5 + count: range(0, 3 * count, 3) for count in range(40)} | {45: [1]},
    "one less and one more than a power of two": {5: range(0, 4094, 2), 6: range(0, 4096, 2), 7: range(2049), 8: [0]},
}


@pytest.mark.parametrize("pages", FILES.values(), ids=FILES)
def test_every_address(host: Host, memory: UnwindMemory, pages: dict[int, Sequence[int]]) -> None:
    table = file_of(pages)
    memory.set_file(1, file_of({3: [1, 2, 3]}, 2), numbered_rules())  # neighbours in the chunk
    memory.set_file(2, table, numbered_rules())
    memory.set_file(3, file_of({3: [1, 2, 3]}, 3), numbered_rules())
    first, last = min(pages), max(pages)
    mappings = [(START, START + (last + 4 << 12), START, 2)]
    index = memory.add_mappings(mapping_array(mappings))
    step = 1 if last == first else 7
    statuses = {
        check(host, index, mappings, {2: table}, START + address)
        for address in range((first << 12) - 20, (last + 1 << 12) + 20, step)
    }
    for address in (-1, 0, 1, last + 4 << 12, (last + 4 << 12) - 1):
        check(host, index, mappings, {2: table}, START + address)
    assert statuses == {STATUS.BP_OK, STATUS.BP_NATIVE_NO_RULE}


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 9, 1000, 4095, MAX_MAPPINGS, 8191])
def test_mappings_with_gaps(host: Host, memory: UnwindMemory, count: int) -> None:
    """Each has a bias of its own, so that its number says which row is found."""
    chance = random.Random(count)
    table = file_of({0: range(4096)})
    memory.set_file(1, table, numbered_rules())
    memory.set_frame_pointers(2)
    mappings, at = [], START
    for number in range(count):
        at += chance.choice([0, 0, 1, 16, 4096])
        end = at + chance.choice([1, 2, 16])
        mappings.append((at, end, at - number % 4000, chance.choice([1, 1, 1, 2])))
        at = end
    memory.add_mappings(mapping_array([(START, 1 << 46, 0, 2)]))  # what lies beside it is not looked at
    index = memory.add_mappings(mapping_array(mappings))
    memory.add_mappings(mapping_array([(START, 1 << 46, 0, 2)]))
    places = {edge + more for start, end, *_ in mappings for edge in (start, end) for more in (-1, 0, 1)}
    sample = chance.sample(sorted(places), min(800, len(places)))
    for pc in {*sample, at - 1, 0, 1, START, at, at + 5, (1 << 47) - 1, 1 << 47, 1 << 63, (1 << 64) - 1}:
        check(host, index, mappings, {1: table}, pc)


def test_the_highest_mapping_and_a_negative_bias(host: Host, memory: UnwindMemory) -> None:
    top = 1 << 47
    table = file_of({(0x10_0000_0000 >> 12): range(0, 4096, 5)})
    memory.set_file(1, table, numbered_rules())
    bias = top - 4096 - 0x10_0000_0000
    mappings = [(0x1000, 0x2000, 0x1000 - 0x10_0000_0000, 1), (top - 4096, top, bias, 1)]
    index = memory.add_mappings(mapping_array(mappings))
    for pc in (0xFFF, 0x1000, 0x1004, 0x1FFF, 0x2000, top - 4097, top - 4096, top - 1, top, top + 1):
        check(host, index, mappings, {1: table}, pc)


def test_a_file_that_is_not_ready(host: Host, memory: UnwindMemory) -> None:
    index = memory.add_mappings(mapping_array([(START, START + 4096, START, 7)]))
    assert host.find_rule(index, 1, START)[0] == STATUS.BP_NATIVE_NOT_READY
    memory.set_frame_pointers(7)
    assert host.find_rule(index, 1, START) == (STATUS.BP_OK, FRAME_POINTER_ID)


def test_a_function_that_was_not_read_is_not_ready(host: Host, memory: UnwindMemory) -> None:
    """What lies before and behind it is."""
    rules = np.array([(0,) * 7, (int(CfaKind.UNSUPPORTED), *(0,) * 6), UNREAD_FIELDS, (3, 1, 0, 0, 8, -16, -8)], RULE)
    rows = np.array([0, 3, 0x100 << 20 | 2, 0x200 << 20 | 3, 0x300 << 20], np.uint32)
    memory.set_file(1, FileRows(5, np.array([1, 5], np.uint32), rows), rules)
    index = memory.add_mappings(mapping_array([(START, START + 4096, START - 0x5000, 1)]))
    for offset, status in ((0xFF, "OK"), (0x100, "NATIVE_NOT_READY"), (0x1FF, "NATIVE_NOT_READY"), (0x200, "OK")):
        assert host.find_rule(index, 1, START + offset)[0] == STATUS[f"BP_{status}"], hex(offset)
        row = memory.rule_at(1, 0x5000 + offset)
        assert (row is None) == (status != "OK")
    assert host.find_rule(index, 1, START + 0x300)[0] == STATUS.BP_NATIVE_NO_RULE
    starts, found = memory.rows_before(1, 0x52FF)
    assert starts.tolist() == [0x5000, 0x5200] and found["cfa_offset"].tolist() == [8, 8]


@pytest.mark.parametrize("last_rows", [4093, 4094, 4095, 4096])
def test_a_table_over_several_chunks(host: Host, memory: UnwindMemory, last_rows: int) -> None:
    """A page without rows comes where the rows before it fill a chunk to its last words, or not quite."""
    full = {page: range(4096) for page in range(255)}
    more = {page: range(page % 4097) for page in range(258, 600, 3)}
    table = file_of({**full, 255: range(last_rows), 257: [3, 4, 5], **more, 600: [17]})
    assert abs(int(table.pages[256]) - CHUNK_WORDS) < 3
    memory.set_file(1, table, numbered_rules())
    memory.set_file(2, file_of({page: range(4096) for page in range(300)}, 9), numbered_rules())
    assert len(memory._chunks) >= 3
    mappings = [(START, START + (601 << 12), START, 1)]
    index = memory.add_mappings(mapping_array(mappings))
    chance = random.Random(3)
    edges = [(page << 12) + more for page in range(250, 262) for more in (-1, 0, 1, 2, 3, 4, 5, 6, 2000, 4094)]
    for address in [*edges, *(chance.randrange(601 << 12) for _ in range(300))]:
        check(host, index, mappings, {1: table}, START + address)
