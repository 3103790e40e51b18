"""Unwind tables in the maps of the kernel side: what it finds there is what was put in."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from bpfprof import abi
from bpfprof.abi import ebpf_directory
from bpfprof.abi.dtypes import MAPPING_DTYPE
from bpfprof.elf.cfi.rules import RULE, CfaKind, Rules
from bpfprof.elf.cfi.tables import CallFrames
from bpfprof.kernel import unwind_memory
from bpfprof.kernel.unwind_memory import MAX_MAPPINGS, UnwindMemory, UnwindMemoryFull
from bpfprof.unwind import rows as rows_module
from bpfprof.unwind.rows import FileRows, compact, find
from tests.unit.kernel.kernel_view import (
    FRAME_POINTER,
    MAPPING_STEPS,
    PAGE_STEPS,
    PENDING,
    KernelView,
    Missing,
    random_mappings,
)

SMALL_CHUNK = 1 << 13  # just above what one page of rows can take
MANY_ROWS = 2_500_000
FAR = 1 << 40


@pytest.fixture(params=["maps", "files"])
def view(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelView]:
    """Over real BPF maps (as root), and over files in memory that stand for them."""
    made = KernelView.of_maps() if request.param == "maps" else KernelView.of_files(monkeypatch)
    yield made
    made.close()


@pytest.fixture
def small_view(monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelView]:
    """With small chunks, whose edges are soon reached."""
    made = KernelView.of_files(monkeypatch, SMALL_CHUNK)
    yield made
    made.close()


class Clock:
    """Time as the memory sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(unwind_memory, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def some_rules(count: int, first_offset: int) -> Rules:
    """Rules that tell files apart; the first two as in every file."""
    rules = np.zeros(count, RULE)
    rules["cfa_kind"], rules["cfa_offset"] = CfaKind.RSP, np.arange(count) * 8 + first_offset
    rules[0] = 0
    rules[1] = (CfaKind.UNSUPPORTED, 0, 0, 0, 0, 0, 0)
    return rules


def table_of(chance: np.random.Generator, addresses: np.ndarray, rules: Rules) -> FileRows:
    rule = chance.integers(0, len(rules), len(addresses)).astype(np.uint16)
    none = np.zeros(0, np.uint64)
    return compact(CallFrames(addresses.astype(np.uint64), rule, rules, none, none, len(addresses), {}))


def random_table(chance: np.random.Generator, count: int, rules: Rules) -> FileRows:
    """Rows in clumps: pages that are full, pages with a few and pages with none."""
    spread = np.cumsum(chance.choice([1, 1, 1, 2, 9, 40, 300], count))
    leaps = np.cumsum((chance.random(count) < 0.0005) * chance.integers(0, 40_000, count))
    return table_of(chance, int(chance.integers(0, 1 << 30)) + spread + leaps, rules)


def addresses_to_try(chance: np.random.Generator, table: FileRows, count: int) -> list[int]:
    """Random ones, those at edges of pages, and those of rows; some before and behind the table."""
    first, page_count = table.first_page, len(table.pages) - 1
    pages = first + chance.integers(-2, page_count + 2, count)
    inside = chance.choice([0, 1, 0xFFE, 0xFFF, *chance.integers(0, 0x1000, 4).tolist()], count)
    of_rows = chance.integers(1, len(table.rows), count)
    page_of_row = first + np.searchsorted(table.pages, of_rows, "right") - 1
    exact = (page_of_row << 12) + (table.rows[of_rows] >> 20)
    near = exact + chance.integers(-1, 2, count)
    ends = [(first << 12) - 1, first << 12, (first + page_count) << 12, ((first + page_count) << 12) - 1, 0, FAR]
    return [max(0, address) for address in ((pages << 12) + inside).tolist() + exact.tolist() + near.tolist() + ends]


def assert_finds_the_same(
    view: KernelView, memory: UnwindMemory, number: int, table: FileRows, rules: Rules, addresses: list[int]
) -> None:
    """The kernel side, and user space when it walks a stack."""
    file = view.file(number)
    for address in addresses:
        index = find(table, address)
        assert view.rule(view.find_rule(file, address)).tobytes() == rules[index].tobytes(), hex(address)
        row = memory.rule_at(number, address)
        assert row is not None and row.tobytes() == (rules[index].tobytes() if index else b""), hex(address)


def test_a_table_larger_than_a_chunk(view: KernelView) -> None:
    """libtorch_cpu has 2.6 million rows."""
    chance, rules = np.random.default_rng(11), some_rules(300, 0)
    table = random_table(chance, MANY_ROWS, rules)
    memory = UnwindMemory(view.tables())
    memory.set_file(7, table, rules)
    assert len(view.chunk_fds) >= 3
    cut = np.searchsorted(table.pages, np.arange(1, 3) * view.chunk_words) + table.first_page
    at_cuts = [(int(page) + step << 12) + inside for page in cut for step in range(-3, 3) for inside in (0, 1, 0xFFF)]
    assert_finds_the_same(view, memory, 7, table, rules, at_cuts + addresses_to_try(chance, table, 700))


def test_many_small_tables(view: KernelView) -> None:
    chance = np.random.default_rng(12)
    memory, made = UnwindMemory(view.tables()), {}
    for number in chance.choice(abi.CONSTANTS["BP_MAX_FILES"], 120, replace=False).tolist():
        rules = some_rules(int(chance.integers(2, 30)), 8 * int(chance.integers(0, 1000)))
        table = random_table(chance, int(chance.integers(1, 3000)), rules)
        memory.set_file(number, table, rules)
        made[number] = (table, rules)
    for number, (table, rules) in made.items():
        assert_finds_the_same(view, memory, number, table, rules, addresses_to_try(chance, table, 12))
    assert len(view.chunk_fds) == 1


def test_every_address_of_tables_at_the_edges_of_chunks(small_view: KernelView) -> None:
    """Pieces that fill a chunk to its last word, with empty pages where they end."""
    chance, rules = np.random.default_rng(13), some_rules(50, 0)
    memory = UnwindMemory(small_view.tables())
    full = np.arange(0x1000)
    tables = {}
    for number, (second, gap) in enumerate([(4094, 1), (4095, 1), (4095, 3), (4096, 1), (4093, 2), (4095, 0)]):
        addresses = [full, 0x1000 + full[:second], (2 + gap << 12) + full[::9], (3 + gap << 12) + full]
        tables[number] = table_of(chance, 0x40000 + np.concatenate(addresses), rules)
        memory.set_file(number, tables[number], rules)
    for number, table in tables.items():
        tried = [0x40000 + page * 0x1000 + inside for page in range(9) for inside in (0, 1, 2, 0x7FF, 0xFFE, 0xFFF)]
        assert_finds_the_same(small_view, memory, number, table, rules, tried)


@pytest.mark.parametrize("seed", range(4))
def test_tables_of_every_size_in_small_chunks(small_view: KernelView, seed: int) -> None:
    chance = np.random.default_rng(seed)
    memory, made = UnwindMemory(small_view.tables()), []
    for number in range(40):
        rules = some_rules(20, 1000 * number)
        table = random_table(chance, int(chance.choice([1, 7, 500, 8000, 30_000])), rules)
        if 2 * (len(table.pages) - 1) > SMALL_CHUNK:
            continue
        memory.set_file(number, table, rules)
        made.append((number, table, rules))
    for number, table, rules in made:
        assert_finds_the_same(small_view, memory, number, table, rules, addresses_to_try(chance, table, 25))


def test_a_file_is_told_of_when_all_of_it_is_there(view: KernelView) -> None:
    rules = some_rules(4, 0)
    table = table_of(np.random.default_rng(1), np.array([0x1000, 0x1010]), rules)
    memory = UnwindMemory(view.tables())
    with pytest.raises(Missing):
        view.find_rule(view.file(3), 0x1000)
    memory.set_frame_pointers(3)
    assert view.find_rule(view.file(3), 0x1000) == FRAME_POINTER
    frame_pointer = view.rule(FRAME_POINTER)[0]
    assert (frame_pointer["cfa_kind"], frame_pointer["cfa_offset"]) == (CfaKind.RBP, 16)
    memory.set_file(4, table, rules)
    assert_finds_the_same(view, memory, 4, table, rules, [0xFFF, 0x1000, 0x100F, 0x1010, 0x1FFF, 0x2000, 0])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100, MAX_MAPPINGS])
def test_every_mapping_is_found(view: KernelView, count: int) -> None:
    chance = np.random.default_rng(count)
    memory = UnwindMemory(view.tables())
    memory.add_mappings(random_mappings(chance, 5))
    mappings = random_mappings(chance, count)
    index = memory.add_mappings(mappings)
    memory.add_mappings(random_mappings(chance, 5))
    chosen = mappings[chance.choice(count, min(count, 200), replace=False)]
    for row in chosen:
        for address in (int(row["start"]), int(row["end"]) - 1):
            assert view.find_mapping(index, count, address)[0] == row
    outside = [0, int(mappings["start"][0]) - 1, int(mappings["end"][-1]), (1 << 47) - 1]
    outside += [int(end) for end, start in zip(mappings["end"], mappings["start"][1:]) if end < start][:50]
    for address in outside:
        with pytest.raises(Missing):
            view.find_mapping(index, count, address)


def test_a_process_without_mappings(view: KernelView) -> None:
    memory = UnwindMemory(view.tables())
    index = memory.add_mappings(np.zeros(0, MAPPING_DTYPE))
    with pytest.raises(Missing):
        view.find_mapping(index, 0, 0x1000)
    memory.release_mappings(index, 0)


def test_space_is_never_given_twice_nor_across_chunks(small_view: KernelView, clock: Clock) -> None:
    """What was released may still be read for a while, so it counts as in use for that long."""
    chance = np.random.default_rng(14)
    memory = UnwindMemory(small_view.tables())
    live: list[tuple[int, int, np.ndarray]] = []
    resting: list[tuple[float, int, int]] = []
    for _ in range(3000):
        clock.now_s += float(chance.exponential(0.05))
        resting = [entry for entry in resting if entry[0] > clock.now_s]
        if live and chance.random() < 0.5:
            index, count, _ = live.pop(int(chance.integers(0, len(live))))
            memory.release_mappings(index, count)
            resting.append((clock.now_s + unwind_memory._REUSE_AFTER_S, index, count))
            continue
        mappings = random_mappings(chance, int(chance.choice([1, 1, 2, 30, 400])))
        index = memory.add_mappings(mappings)
        words = len(mappings) * 8
        assert index % 8 == 0 and index // SMALL_CHUNK == (index + words - 1) // SMALL_CHUNK
        in_use = [(start, count) for start, count, _ in live] + [(start, count) for _, start, count in resting]
        assert all(index + words <= start or index >= start + 8 * count for start, count in in_use)
        live.append((index, len(mappings), mappings))
    for index, count, mappings in live:
        row = mappings[int(chance.integers(0, count))]
        assert small_view.find_mapping(index, count, int(row["start"]))[0] == row


def test_released_space_is_used_again_after_a_while(small_view: KernelView, clock: Clock) -> None:
    chance = np.random.default_rng(15)
    memory = UnwindMemory(small_view.tables())
    mappings = random_mappings(chance, 1000)  # a chunk has room for one of these
    first = memory.add_mappings(mappings)
    memory.release_mappings(first, len(mappings))
    clock.now_s += unwind_memory._REUSE_AFTER_S - 0.001
    second = memory.add_mappings(mappings)
    assert second != first and len(small_view.chunk_fds) == 2
    clock.now_s += 0.002
    assert memory.add_mappings(mappings) == first
    for _ in range(50):
        memory.release_mappings(second, len(mappings))
        clock.now_s += unwind_memory._REUSE_AFTER_S + 1
        second = memory.add_mappings(mappings)
    assert len(small_view.chunk_fds) == 2, "a process that maps for ever does not take more and more"


def test_pieces_that_touch_become_one_again(small_view: KernelView, clock: Clock) -> None:
    chance = np.random.default_rng(16)
    memory = UnwindMemory(small_view.tables())
    for _ in range(5):
        pieces = [(memory.add_mappings(random_mappings(chance, 128)), 128) for _ in range(16)]
        for place in chance.permutation(len(pieces)).tolist():
            memory.release_mappings(*pieces[place])
        clock.now_s += unwind_memory._REUSE_AFTER_S + 1
        whole = memory.add_mappings(random_mappings(chance, 1024))
        memory.release_mappings(whole, 1024)
        clock.now_s += unwind_memory._REUSE_AFTER_S + 1
    assert len(small_view.chunk_fds) <= 3


def test_full_memory_is_said_and_what_is_there_stays(
    small_view: KernelView, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(unwind_memory, "_MAX_CHUNKS", 3)
    chance, rules = np.random.default_rng(17), some_rules(10, 0)
    memory = UnwindMemory(small_view.tables())
    small, large = (table_of(chance, np.arange(count) * 5, rules) for count in (1000, 30_000))
    memory.set_file(1, small, rules)
    with pytest.raises(UnwindMemoryFull, match="--table-memory"):
        memory.set_file(2, large, rules)
    assert small_view.file(2)["state"] == PENDING, "nobody reads the half of a table"
    assert len(small_view.chunk_fds) == 3
    index = memory.add_mappings(random_mappings(chance, 10))
    memory.set_file(3, small, rules)
    assert_finds_the_same(small_view, memory, 1, small, rules, addresses_to_try(chance, small, 50))
    assert_finds_the_same(small_view, memory, 3, small, rules, addresses_to_try(chance, small, 50))
    with pytest.raises(UnwindMemoryFull):
        for _ in range(100):
            memory.add_mappings(random_mappings(chance, 500))
    memory.release_mappings(index, 10)
    clock.now_s += unwind_memory._REUSE_AFTER_S + 1
    assert memory.add_mappings(random_mappings(chance, 10)) == index


def test_the_table_that_was_not_used_for_longest_goes(small_view: KernelView, clock: Clock) -> None:
    chance, rules = np.random.default_rng(19), some_rules(10, 0)
    memory = UnwindMemory(small_view.tables(), 4 * 4 * SMALL_CHUNK)
    table = table_of(chance, np.arange(6000) * 5, rules)  # one a chunk
    for number in (1, 2, 3, 4):
        memory.set_file(number, table, rules)
        clock.now_s += 10
    memory.note_used([1, 3, 4, 99])
    memory.set_file(5, table, rules)
    assert memory.take_evicted() == [2] and memory.take_evicted() == [] and memory.evicted_count == 1
    assert small_view.file(2)["state"] == PENDING
    clock.now_s += 1
    memory.note_used([1, 3, 4])
    with pytest.raises(UnwindMemoryFull, match="--table-memory"):
        memory.set_file(6, table, rules)
    assert not memory.take_evicted(), "what is in use stays"
    for number in (1, 3, 4, 5):
        assert_finds_the_same(small_view, memory, number, table, rules, addresses_to_try(chance, table, 50))
    clock.now_s += 60
    with pytest.raises(UnwindMemoryFull):
        memory.set_file(7, table_of(chance, np.arange(40_000) * 5, rules), rules)
    assert not memory.take_evicted(), "nothing goes for what would not fit alone"
    memory.set_file(2, table, rules)
    assert_finds_the_same(small_view, memory, 2, table, rules, addresses_to_try(chance, table, 50))


def test_a_table_that_did_not_fit_leaves_its_space_to_others(
    small_view: KernelView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwind_memory, "_MAX_CHUNKS", 2)
    chance, rules = np.random.default_rng(18), some_rules(10, 0)
    memory = UnwindMemory(small_view.tables())
    large, medium = (table_of(chance, np.arange(count) * 5, rules) for count in (30_000, 6000))
    for number in range(20):
        with pytest.raises(UnwindMemoryFull):
            memory.set_file(number, large, rules)
    memory.set_file(30, medium, rules)
    assert_finds_the_same(small_view, memory, 30, medium, rules, addresses_to_try(chance, medium, 50))


def test_a_page_index_that_no_chunk_can_hold_is_refused(small_view: KernelView) -> None:
    rules = some_rules(3, 0)
    table = table_of(np.random.default_rng(1), np.array([0x1000, 0x1000 * SMALL_CHUNK]), rules)
    with pytest.raises(UnwindMemoryFull, match="words"):
        UnwindMemory(small_view.tables()).set_file(1, table, rules)
    assert small_view.file(1)["state"] == PENDING


@pytest.mark.second_tier
def test_a_large_table_takes_no_longer_than_it_must(view: KernelView) -> None:
    """It is written while the recording runs."""
    rules = some_rules(10, 0)
    table = table_of(np.random.default_rng(1), np.arange(1_000_000) * 7, rules)
    memory = UnwindMemory(view.tables())
    began_s = time.process_time()
    memory.set_file(1, table, rules)
    assert time.process_time() - began_s < 1


def test_the_numbers_of_the_searches_are_those_of_the_kernel_side() -> None:
    text = (ebpf_directory() / "unwind_tables.bpf.h").read_text()
    defines = {name: int(number) for name, number in re.findall(r"^#define (\w+) (\d+)\b", text, re.MULTILINE)}
    assert defines["PAGE_BITS"] == rows_module.PAGE_BITS
    assert (defines["MAPPING_STEPS"], defines["PAGE_STEPS"]) == (MAPPING_STEPS, PAGE_STEPS)
    assert MAX_MAPPINGS < 1 << MAPPING_STEPS and 1 << rows_module.PAGE_BITS < 1 << PAGE_STEPS
    assert rows_module.PAGE_BITS + rows_module.RULE_BITS == 32


def test_user_space_knows_what_is_not_there_yet(view: KernelView) -> None:
    memory = UnwindMemory(view.tables())
    assert memory.rule_at(3, 0x1000) is None
    memory.set_frame_pointers(3)
    row = memory.rule_at(3, 0x1000)
    assert row is not None and row.tobytes() == view.rule(FRAME_POINTER).tobytes()
