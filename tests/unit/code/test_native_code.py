"""Which file an address of a process belongs to, and what the kernel side is told of it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from bpfprof.kernel.mapping_events import MappingEvent
from bpfprof.kernel.unwind_memory import MAX_MAPPINGS
from bpfprof.model.ids import Pid, RuntimeAddress
from bpfprof.model.samples import NO_FILE
from tests.unit.code.fake_native import CHILD, PID, FakeImage, FakeTarget, mapping

A, B = "/lib/a.so", "/lib/b.so"


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> FakeTarget:
    return FakeTarget.install(monkeypatch)


def located(target: FakeTarget, address: int, pid: Pid = PID) -> tuple[str, int]:
    number, place = target.code.map_of[pid].locate(address)
    return ("" if number == NO_FILE else target.files.files[number].path), place


def test_addresses_at_the_edges_of_mappings(target: FakeTarget) -> None:
    target.map(mapping(0x10000, 0x12000, A, 0x1000), mapping(0x12000, 0x13000, B), mapping(0x20000, 0x21000, A, 0x5000))
    expected = {
        0: ("", 0),
        0xFFFF: ("", 0xFFFF),
        0x10000: (A, 0x1000),
        0x11FFF: (A, 0x2FFF),
        0x12000: (B, 0),
        0x12FFF: (B, 0xFFF),
        0x13000: ("", 0x13000),
        0x1FFFF: ("", 0x1FFFF),
        0x20000: (A, 0x5000),
        0x20FFF: (A, 0x5FFF),
        0x21000: ("", 0x21000),
        (1 << 64) - 1: ("", (1 << 64) - 1),
    }
    assert {address: located(target, address) for address in expected} == expected


def test_a_process_that_maps_no_code(target: FakeTarget) -> None:
    assert target.map(mapping(0x10000, 0x11000, permissions="rw-p"))
    assert located(target, 0x10000) == ("", 0x10000)
    assert target.code.map_of[PID].rows == []


@pytest.mark.parametrize("distance", [0, 0x1000, -0x400000])
def test_the_kernel_side_is_told_the_same(target: FakeTarget, distance: int) -> None:
    """A file that is mapped below the addresses it says has a bias below 0; the kernel side counts modulo 2**64."""
    target.files.images[A] = FakeImage(distance)
    target.map(mapping(0x10000, 0x12000, A), mapping(0x30000, 0x31000, ""))
    code_map = target.code.map_of[PID]
    rows = target.memory.mappings[code_map.index]
    assert rows["start"].tolist() == [0x10000, 0x30000] and rows["end"].tolist() == [0x12000, 0x31000]
    for row in rows:
        address = int(row["start"]) + 0x123
        number, place = code_map.locate(address)
        assert number == row["file"]
        assert place % (1 << 64) == (address - int(row["bias"])) % (1 << 64)
    assert located(target, 0x10123) == (A, 0x123 - distance)
    assert located(target, 0x30123) == (f"[memory of {PID}]", 0x30123), "without a file an address is as it runs"


def test_what_has_no_place_is_left_out(target: FakeTarget) -> None:
    target.files.limit = 2  # the kernel and one more
    target.map(
        mapping(0x10000, 0x11000, A),
        mapping(0x20000, 0x21000, B),
        mapping(0xFFFFFFFFFF600000, 0xFFFFFFFFFF601000, "[vsyscall]"),
    )
    assert len(target.code.map_of[PID].rows) == 1
    assert located(target, 0x20000) == ("", 0x20000) and located(target, 0xFFFFFFFFFF600000)[0] == ""


def test_mappings_beyond_what_is_searched_are_counted(target: FakeTarget) -> None:
    count = MAX_MAPPINGS + 3
    target.map(*(mapping(0x10000 * (index + 1), 0x10000 * (index + 1) + 0x1000) for index in range(count)))
    assert (target.code.cut_count, len(target.code.map_of[PID].rows)) == (3, MAX_MAPPINGS)
    assert located(target, 0x10000 * MAX_MAPPINGS)[0] == A and located(target, 0x10000 * count)[0] == ""


def test_only_a_change_is_told(target: FakeTarget) -> None:
    first, second = mapping(0x10000, 0x12000), mapping(0x20000, 0x21000, B)
    data = mapping(0x50000, 0x51000, permissions="rw-p")
    assert target.map(first)
    for same in ([first], [first, data], [data, first]):
        assert not target.map(*same)
    assert not target.memory.released
    before = target.code.map_of[PID].index
    for changed in ([first, second], [mapping(0x10000, 0x13000), second], [mapping(0x10000, 0x13000, B), second], []):
        assert target.map(*changed), changed
        assert target.code.map_of[PID].index != before
        before = target.code.map_of[PID].index
    assert list(target.memory.mappings) == [before], "each was given back when the next one was there"


def test_another_file_was_there_between_two_looks(target: FakeTarget) -> None:
    """Samples of that time would be named by the file that is there before and after."""
    target.map(mapping(0x10000, 0x12000))
    old, now = target.code.map_of[PID], time.monotonic_ns()

    def event(start: int, inode: int, time_ns: int) -> MappingEvent:
        return MappingEvent(PID, RuntimeAddress(start), 0x1000, inode, time_ns)

    for start, inode, time_ns in ((0x10000, 7, now), (0x10000, 8, 1), (0x40000, 8, now), (0x10000, 0, now)):
        assert not target.code.look_at(PID, time_ns, [event(start, inode, time_ns)])
        now = time.monotonic_ns()
    assert target.code.look_at(PID, now, [event(0x11000, 8, now)])
    assert target.code.replaced == {(PID, old.generation): now}
    assert target.code.map_of[PID].generation != old.generation and target.code.map_of[PID].rows == old.rows


def test_a_process_that_is_gone_keeps_what_was_known(target: FakeTarget) -> None:
    """Its stacks are still on their way."""
    target.map(mapping(0x10000, 0x12000))
    del target.maps[PID]
    assert not target.code.look_at(PID)
    assert located(target, 0x10000)[0] == A
    assert not target.code.look_at(Pid(999)) and Pid(999) not in target.code.map_of


def test_when_memory_is_full_the_old_mappings_stay(target: FakeTarget) -> None:
    target.map(mapping(0x10000, 0x12000))
    index = target.code.map_of[PID].index
    target.memory.is_full = True
    assert not target.map(mapping(0x10000, 0x12000), mapping(0x20000, 0x21000, B))
    assert target.code.map_of[PID].index == index and not target.memory.released
    target.memory.is_full = False
    assert target.code.look_at(PID), "it is tried again"


def test_a_forked_child_shares_until_both_are_gone(target: FakeTarget) -> None:
    target.map(mapping(0x10000, 0x12000))
    shared = target.code.map_of[PID]
    target.code.share(CHILD, PID)
    assert target.code.map_of[CHILD] is shared
    assert not target.map(*target.maps[PID], pid=CHILD), "the child has the same mappings"
    target.code.forget(PID)
    assert not target.memory.released and located(target, 0x10000, CHILD)[0] == A
    target.code.forget(CHILD)
    target.code.forget(CHILD)
    assert target.memory.released == [(shared.index, len(shared.rows))] and not target.code.map_of


def test_a_child_that_maps_more_leaves_the_parent_its_own(target: FakeTarget) -> None:
    target.map(mapping(0x10000, 0x12000))
    target.code.share(CHILD, PID)
    assert target.map(*target.maps[PID], mapping(0x20000, 0x21000, B), pid=CHILD)
    assert located(target, 0x20000, CHILD)[0] == B and located(target, 0x20000)[0] == ""
    assert not target.memory.released
    target.code.forget(PID)
    assert len(target.memory.released) == 1 and located(target, 0x20000, CHILD)[0] == B


def test_the_next_process_with_a_pid_does_not_keep_the_last_one_s(target: FakeTarget) -> None:
    target.map(mapping(0x10000, 0x12000, B), pid=CHILD)
    target.map(mapping(0x10000, 0x12000, A))
    target.code.share(CHILD, PID)
    assert located(target, 0x10000, CHILD)[0] == A and len(target.memory.released) == 1
    target.code.share(Pid(999), Pid(998))
    assert Pid(999) not in target.code.map_of, "nothing is known of its parent"


def test_many_processes_come_and_go(target: FakeTarget) -> None:
    """Whatever the order, what no process has is given back, once."""
    chance = np.random.default_rng(4)
    pids = [Pid(200 + index) for index in range(12)]
    for _ in range(2000):
        pid, other = (pids[index] for index in chance.choice(len(pids), 2, replace=False))
        action = chance.integers(0, 4)
        if action == 0:
            target.map(mapping(0x10000, 0x11000 + 0x1000 * int(chance.integers(0, 5))), pid=pid)
        elif action == 1:
            target.code.share(pid, other)
        elif action == 2:
            target.code.forget(pid)
        else:
            target.code.look_at(pid)
        used = {code_map.index for code_map in target.code.map_of.values()}
        assert used == set(target.memory.mappings)


def test_the_file_of_an_address_is_hurried(target: FakeTarget) -> None:
    target.map(mapping(0x10000, 0x12000, A), mapping(0x12000, 0x13000, B))
    for address in (0x12000, 0x11FFF, 0x13000, 0):
        target.code.hurry(PID, address)
    target.code.hurry(CHILD, 0x12000)
    assert target.files.hurried == [B, A]
