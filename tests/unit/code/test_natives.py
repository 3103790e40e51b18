"""Native and kernel addresses as the kernel side sends them, to rows of the recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from bpfprof import abi
from bpfprof.code import addresses, maps
from bpfprof.code.addresses import NativeTable, RawStack, kernel_addresses
from bpfprof.elf.image import ElfImage
from bpfprof.model.ids import Pid
from bpfprof.model.samples import NATIVE_EXACT, NO_FILE
from tests.unit.code.fake_native import CHILD, PID, FakeImage, FakeTarget, mapping

A, B = "/lib/a.so", "/lib/b.so"
EXACT = 1 << abi.CONSTANTS["BP_EXACT_BIT"]
LATER_NS = 1 << 60  # after every change of mappings
OK, NOT_READY, NO_RULE, NO_MAPPING = (
    int(abi.Status[f"BP_{name}"]) for name in ("OK", "NATIVE_NOT_READY", "NATIVE_NO_RULE", "NATIVE_NO_MAPPING")
)
BARE_LEAF = int(abi.ENUMS["bp_native_flags"]["BP_NATIVE_BARE_LEAF"])
FUTEX = 0xFFFF_FFFF_8123_4567


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> FakeTarget:
    """Two files of which the second follows the first, at another place in the child."""
    made = FakeTarget.install(monkeypatch)
    made.map(mapping(0x10000, 0x12000, A), mapping(0x12000, 0x13000, B))
    made.map(mapping(0x70000, 0x72000, A), pid=CHILD)
    return made


@pytest.fixture
def table(target: FakeTarget) -> NativeTable:
    return NativeTable(target.code)


def numbers(
    table: NativeTable, native: Sequence[int], kernel: Sequence[int] = (), pid: Pid = PID, status: int = OK
) -> list[int]:
    code_map = table.code.map_of.get(pid)
    generation = code_map.generation if code_map is not None else 0
    return table.numbers(pid, RawStack([*native, *kernel], len(native), status, 0, generation, LATER_NS))


def rows(table: NativeTable, target: FakeTarget, found: Sequence[int]) -> list[tuple[str, int, int]]:
    """(path, address, flags) of each number."""
    chosen = [table._new[number - 1] for number in found]
    return [("" if file == NO_FILE else target.files.files[file].path, place, flags) for place, file, flags in chosen]


def test_an_address_is_numbered_and_written_once(table: NativeTable) -> None:
    assert numbers(table, [0x10010 | EXACT, 0x10020, 0x12030], [FUTEX]) == [1, 2, 3, 4]
    assert len(table.take_new()) == 4
    assert numbers(table, [0x10020, 0x10020, 0x10040], [FUTEX]) == [2, 2, 5, 4]
    assert table.take_new()["address"].tolist() == [0x40] and len(table.take_new()) == 0


def test_addresses_that_a_process_makes_up_have_a_limit(table: NativeTable) -> None:
    """The frames that were known before are kept, and other processes have theirs."""
    base = 0x10000
    made_up = [[base + 8 * (200 * turn + place) for place in range(200)] for turn in range(1000)]
    known, kept = [base + 16 | EXACT, base + 32], []
    for words in made_up:
        stack = RawStack([*known, *words, FUTEX], 202, OK, 0, 1, LATER_NS)
        kept.append(len(table.numbers(PID, stack)))
    assert kept[:500] == [203] * 500
    assert 3 in kept[500:600] and stack.native_status == abi.Status["BP_OVER_BUDGET"]
    assert len(table.take_new()) < 110_000
    assert len(numbers(table, [0x70020, 0x70030], pid=CHILD)) == 2


def test_processes_that_map_a_file_elsewhere_have_its_addresses_in_common(table: NativeTable) -> None:
    assert numbers(table, [0x10020]) == numbers(table, [0x70020], pid=CHILD) == [1]
    assert numbers(table, [0x10020], pid=CHILD) == [2], "at this address the child has nothing"


def test_what_runs_is_not_what_is_returned_to(table: NativeTable, target: FakeTarget) -> None:
    found = numbers(table, [0x10020 | EXACT, 0x10020])
    assert rows(table, target, found) == [(A, 0x20, NATIVE_EXACT), (A, 0x20, 0)]


def test_what_is_returned_to_at_the_end_of_a_mapping_belongs_to_it(table: NativeTable, target: FakeTarget) -> None:
    """A call of a function that never returns may be the last instruction."""
    found = numbers(table, [0x12000 | EXACT, 0x12000, 0x13000, 0x13000 | EXACT, 0x10000])
    assert rows(table, target, found) == [
        (B, 0, NATIVE_EXACT),
        (A, 0x2000, 0),
        (B, 0x1000, 0),
        ("", 0x13000, NATIVE_EXACT),
        ("", 0x10000, 0),
    ]


def test_an_address_in_no_known_mapping_is_looked_up_again(table: NativeTable, target: FakeTarget) -> None:
    (before,) = numbers(table, [0x20010], status=NO_MAPPING)
    assert numbers(table, [0x20010], status=NO_MAPPING) == [before]
    target.map(*target.maps[PID], mapping(0x20000, 0x21000, B, 0x4000))
    (after,) = numbers(table, [0x20010])
    assert rows(table, target, [before, after]) == [("", 0x20010, 0), (B, 0x4010, 0)]


def test_a_stack_that_ended_in_code_that_was_mapped_a_moment_before(table: NativeTable, target: FakeTarget) -> None:
    """It lacks what is known by now, or will be once the mappings are read; but of made code there is no end."""

    def status(pid: Pid = PID) -> int:
        code_map = target.code.map_of.get(pid)
        generation = code_map.generation if code_map else 0
        stack = RawStack([0x10010 | EXACT, 0x20010], 2, NO_MAPPING, 0, generation, LATER_NS)
        table.numbers(pid, stack)
        return stack.native_status

    assert status() == NO_MAPPING
    target.code.mapped[PID] = []
    assert status() == NOT_READY
    target.maps[PID] = [*target.maps[PID], mapping(0x20000, 0x21000, B)]
    assert target.code.look_again(PID) and not target.code.mapped
    assert status() == NOT_READY and target.files.hurried == [B]
    target.map(*target.maps[PID][:-1], mapping(0x30000, 0x31000, ""))
    target.code.mapped[PID] = []
    assert status() == NO_MAPPING
    assert status(Pid(999)) == NO_MAPPING


def test_code_that_was_replaced_is_not_taken_for_what_was_there(table: NativeTable, target: FakeTarget) -> None:
    """dlclose(), then dlopen() of another library at the same place."""
    before = numbers(table, [0x12010])
    target.map(mapping(0x10000, 0x12000, A), mapping(0x12000, 0x13000, "/lib/c.so"))
    after = numbers(table, [0x12010])
    assert [path for path, _, _ in rows(table, target, before + after)] == [B, "/lib/c.so"]


def test_a_process_that_nothing_is_known_of(table: NativeTable, target: FakeTarget) -> None:
    found = numbers(table, [0x10010 | EXACT, 0x10010], [FUTEX], pid=Pid(999))
    assert rows(table, target, found[:2]) == [("", 0x10010, NATIVE_EXACT), ("", 0x10010, 0)]


@pytest.mark.parametrize("word", [0, 1, EXACT, EXACT - 1, (1 << 64) - 1, 1 << 62])
def test_wild_words_do_no_harm(table: NativeTable, target: FakeTarget, word: int) -> None:
    (found,) = rows(table, target, numbers(table, [word]))
    assert found == ("", word & ~EXACT, NATIVE_EXACT if word & EXACT else 0)
    assert table.take_new()["address"].tolist() == [word & ~EXACT]


def test_kernel_addresses_are_the_same_for_all(table: NativeTable, target: FakeTarget) -> None:
    found = numbers(table, [0x10010], [FUTEX, FUTEX + 0x10])
    (path, address, flags), other = rows(table, target, found[1:])
    assert (path, flags) == ("[kernel]", NATIVE_EXACT)  # where it was; the others are returned to
    assert other == ("[kernel]", (address + 0x10) % (1 << 48), 0)
    assert kernel_addresses(np.array([address, other[1]], np.uint64)).tolist() == [FUTEX, FUTEX + 0x10]
    assert numbers(table, [], [FUTEX], pid=CHILD) == found[1:2]
    assert numbers(table, [], [], pid=CHILD) == []


@pytest.mark.parametrize("follows_call", [True, False])
def test_a_leaf_without_a_rule_is_left_only_by_a_return_address(
    table: NativeTable, target: FakeTarget, follows_call: bool
) -> None:
    """The word on top of the stack may be anything: only behind a call it is taken for one."""
    image = FakeImage(code=bytes(0x20) + (bytes.fromhex("e800000000") if follows_call else bytes(5)))
    target.files.files[target.number_of(A)].image = cast(ElfImage, image)
    generation = target.code.map_of[PID].generation
    stack = RawStack([0x12010 | EXACT, 0x10025, 0x12030, FUTEX], 3, OK, BARE_LEAF, generation, LATER_NS)
    found = rows(table, target, table.numbers(PID, stack))
    if follows_call:
        assert [path for path, _, _ in found] == [B, A, B, "[kernel]"]
        assert (stack.native_count, stack.native_status, stack.native_flags) == (3, OK, BARE_LEAF)
    else:
        assert [path for path, _, _ in found] == [B, "[kernel]"]
        assert (stack.native_count, stack.native_status, stack.native_flags) == (1, NO_RULE, 0)


def test_a_stack_is_cut_where_other_code_was_mapped(table: NativeTable, target: FakeTarget) -> None:
    """It was unwound by the rules of what was there before: beyond that frame it is a guess."""
    before = target.code.map_of[PID].generation
    target.map(mapping(0x10000, 0x12000, A), mapping(0x12000, 0x13000, "/lib/c.so"))
    words = [0x10010 | EXACT, 0x10020, 0x12010, 0x10030, FUTEX]
    stack = RawStack(list(words), 4, OK, 0, before, LATER_NS)
    assert [path for path, _, _ in rows(table, target, table.numbers(PID, stack))] == [A, A, "/lib/c.so", "[kernel]"]
    assert (stack.native_count, stack.native_status) == (3, NOT_READY)
    for unchanged in (words[:2], [0x10010 | EXACT, 0x12000, 0x10030], [*words[:2], 0x12010]):
        stack = RawStack(list(unchanged), len(unchanged), OK, 0, before, LATER_NS)
        assert len(table.numbers(PID, stack)) == len(unchanged), "no frame was left by another's rules"
        assert stack.native_status == OK
    stack = RawStack(list(words), 4, OK, 0, 999, LATER_NS)
    assert len(table.numbers(PID, stack)) == 2 and stack.native_status == NOT_READY, "nobody knows what it was"


def test_a_stack_from_before_a_change_has_the_names_of_its_time(table: NativeTable, target: FakeTarget) -> None:
    """Stacks are read some tenths of a second after they were taken."""
    before = target.code.map_of[PID].generation
    target.maps[PID] = [mapping(0x10000, 0x12000, A), mapping(0x12000, 0x13000, "/lib/c.so")]
    assert target.code.look_at(PID, 5000)
    for time_ns, path in ((4999, B), (5000, "/lib/c.so"), (9000, "/lib/c.so")):
        generation = before if time_ns < 5000 else target.code.map_of[PID].generation
        stack = RawStack([0x12010 | EXACT, 0x10010], 2, OK, 0, generation, time_ns)
        assert rows(table, target, table.numbers(PID, stack))[0] == (path, 0x10, NATIVE_EXACT)


def test_a_stack_by_mappings_that_had_been_replaced_is_outdated(table: NativeTable, target: FakeTarget) -> None:
    before = target.code.map_of[PID].generation
    target.maps[PID] = [*target.maps[PID], mapping(0x20000, 0x21000, "/lib/c.so")]
    assert target.code.look_at(PID, 4000)
    added = target.code.map_of[PID].generation
    target.maps[PID] = [mapping(0x10000, 0x12000, A), mapping(0x12000, 0x13000, "/lib/c.so")]
    assert target.code.look_at(PID, 5000)
    now = target.code.map_of[PID].generation
    for pid, generation, time_ns, outdated in (
        (PID, before, 4999, False),  # code came to where none had been
        (PID, before, 5000, True),
        (PID, 0, 5000, False),  # without native frames
        (PID, added, 4999, False),
        (PID, added, 5000, True),
        (CHILD, added, 5000, False),
        (PID, now, 5000, False),
    ):
        assert table.is_outdated(pid, RawStack([0x12010 | EXACT], 1, OK, 0, generation, time_ns)) is outdated


def test_a_stack_that_misses_a_table_hurries_it(table: NativeTable, target: FakeTarget) -> None:
    """The file in which it ended, not the one it began in."""
    numbers(table, [0x10010 | EXACT, 0x12010], [FUTEX], status=NOT_READY)
    assert target.files.hurried == [B]
    for status in (OK, NO_RULE):
        numbers(table, [0x10010 | EXACT, 0x12010], [FUTEX], status=status)
    numbers(table, [0x10010 | EXACT, 0x20010], [FUTEX], status=NO_MAPPING)
    numbers(table, [], [FUTEX], status=NOT_READY)
    numbers(table, [0x10010], status=NOT_READY, pid=Pid(999))
    assert target.files.hurried == [B]


def test_a_stack_that_ends_at_the_end_of_a_mapping_hurries_its_file(table: NativeTable, target: FakeTarget) -> None:
    numbers(table, [0x10010 | EXACT, 0x12000], status=NOT_READY)
    numbers(table, [0x13000], status=NOT_READY)
    numbers(table, [0x12000 | EXACT], status=NOT_READY)
    assert target.files.hurried == [A, B, B]


def test_addresses_that_do_not_come_again_are_forgotten(
    table: NativeTable, monkeypatch: pytest.MonkeyPatch, target: FakeTarget
) -> None:
    """One that new processes have again and again keeps its number."""
    monkeypatch.setattr(addresses, "_NUMBERS_LIMIT", 3)
    target.map(mapping(0x70000, 0x72000, A), pid=CHILD)
    assert numbers(table, [0x10010 | EXACT, 0x10020, 0x10030]) == [1, 2, 3]
    for address in range(0x10040, 0x10080, 0x10):
        table.code.map_of[CHILD].known.clear()
        assert numbers(table, [0x70010 | EXACT], pid=CHILD) == [1]
        numbers(table, [address])
    table.code.map_of[PID].known.clear()
    assert numbers(table, [0x10010 | EXACT, 0x10020])[0] == 1
    assert numbers(table, [0x10020])[0] > 3, "it is written again"
    assert table._numbers.new_count <= 3


def test_the_addresses_of_a_code_map_do_not_grow_without_end(
    table: NativeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may make code all day; one that is met again has its number still."""
    monkeypatch.setattr(addresses, "_KNOWN_LIMIT", 3)
    for address in range(0x10010, 0x10100, 0x10):
        numbers(table, [0x10010 | EXACT, address])
        assert len(table.code.map_of[PID].known) <= 3
    assert numbers(table, [0x10010 | EXACT]) == [1]
    assert table.take_used_files() == {table.code.map_of[PID].rows[0][3]}


def test_mappings_from_before_are_forgotten_after_a_time(
    table: NativeTable, monkeypatch: pytest.MonkeyPatch, target: FakeTarget
) -> None:
    first = table.code.map_of[PID]
    target.map(mapping(0x10000, 0x12000, B))
    table.code.forget_replaced()
    assert table.code.of_generation(PID, first.generation) is first
    monkeypatch.setattr(maps, "_EARLIER_KEPT_NS", -1)
    table.code.forget_replaced()
    assert table.code.of_generation(PID, first.generation) is None and not table.code._earlier
    assert table.code.of_generation(PID, table.code.map_of[PID].generation) is table.code.map_of[PID]
