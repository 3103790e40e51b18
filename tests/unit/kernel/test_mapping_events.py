"""Perf side-band records built by hand, and a buffer laid out in a memory file as the kernel lays out its own."""

from __future__ import annotations

import errno
import mmap
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bpfprof.errors import UnsupportedError
from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.mapping_events import RING_BYTES, MappingEvent, MappingEvents, parse_records
from bpfprof.model.ids import Pid, RuntimeAddress

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
HEAD, TAIL = 1024, 1032
LOST, COMM, MMAP2 = 2, 3, 10
READ_EXEC = mmap.PROT_READ | mmap.PROT_EXEC


def record(kind: int, body: bytes) -> bytes:
    body = body.ljust(len(body) + 7 & ~7, b"\0")
    return struct.pack("<IHH", kind, 0, 8 + len(body)) + body


def mapping(pid: int = 7, path: bytes = b"/lib/a.so", protection: int = READ_EXEC, inode: int = 99) -> bytes:
    place = struct.pack("<IIQQQ", pid, pid + 1, 0x7F0000001000, 0x2000, 0x3000)
    return record(MMAP2, place + struct.pack("<IIQQII", 8, 1, inode, 5, protection, 2) + path + b"\0")


def lost(count: int) -> bytes:
    return record(LOST, struct.pack("<QQ", 1, count))


def pids(events: list[MappingEvent]) -> list[int]:
    return [event.pid for event in events]


class KernelSide:
    """The writing end: what kernel/events/ring_buffer.c does, as far as a single writer needs it."""

    def __init__(self, begin: int = 0) -> None:
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, PAGE_BYTES + RING_BYTES)
        self.map = mmap.mmap(self.fd, PAGE_BYTES + RING_BYTES)
        self.set(TAIL, begin)
        self.set(HEAD, begin)

    def get(self, where: int) -> int:
        return int(struct.unpack_from("<Q", self.map, where)[0])

    def set(self, where: int, value: int) -> None:
        struct.pack_into("<Q", self.map, where, value)

    def put(self, data: bytes) -> bool:
        """Appends a record; False when there is no room."""
        head = self.get(HEAD)
        if head + len(data) - self.get(TAIL) > RING_BYTES:
            return False
        for index, byte in enumerate(data):
            self.map[PAGE_BYTES + (head + index) % RING_BYTES] = byte
        self.set(HEAD, head + len(data))
        return True


@pytest.fixture
def kernel() -> Iterator[KernelSide]:
    side = KernelSide()
    yield side
    side.map.close()


@pytest.fixture
def events(kernel: KernelSide) -> Iterator[MappingEvents]:
    reader = MappingEvents([kernel.fd])
    yield reader
    reader.close()


def test_a_mapping_of_a_file() -> None:
    (event,), lost_count = parse_records(mapping())
    assert event == MappingEvent(Pid(7), RuntimeAddress(0x7F0000001000), 0x2000, 99)
    assert event.is_file
    assert lost_count == 0


def test_anonymous_memory_has_no_file() -> None:
    (event,), _ = parse_records(mapping(path=b"//anon", inode=0))
    assert not event.is_file


def test_other_records_are_skipped_and_lost_ones_counted() -> None:
    data = mapping(1) + record(COMM, b"12345678name") + lost(40) + record(200, b"") + mapping(2) + lost(2)
    events, lost_count = parse_records(data)
    assert pids(events) == [1, 2]
    assert lost_count == 42


def test_only_wanted_pids_become_events() -> None:
    events, lost_count = parse_records(mapping(1) + lost(3) + mapping(2) + mapping(3), {1, 3})
    assert pids(events) == [1, 3]
    assert lost_count == 3


@pytest.mark.parametrize(
    "damage",
    [
        struct.pack("<IHH", MMAP2, 0, 0),
        struct.pack("<IHH", COMM, 0, 7),
        struct.pack("<IHH", MMAP2, 0, 0xFFFF),
        mapping(2)[:-8],
        b"\0\0\0",
    ],
    ids=["no size", "less than a header", "beyond the end", "cut", "half a header"],
)
def test_an_impossible_size_ends_the_parsing(damage: bytes) -> None:
    events, lost_count = parse_records(mapping(1) + damage)
    assert pids(events) == [1]
    assert lost_count == 1


@pytest.mark.parametrize("kind", [MMAP2, LOST])
def test_a_record_too_short_for_its_kind_is_one_lost(kind: int) -> None:
    events, lost_count = parse_records(record(kind, b"12345678") + mapping(2))
    assert pids(events) == [2]
    assert lost_count == 1


def test_damaged_bytes_never_raise() -> None:
    whole = mapping(1) + lost(1) + record(COMM, b"12345678name") + mapping(2)
    generator = random.Random(1)
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(generator.randint(1, 6)):
            data[generator.randrange(len(data))] = generator.choice((0, 1, 0x7F, 0xFF, generator.randrange(256)))
        parse_records(bytes(data[: generator.randint(0, len(data))]))


def test_a_drain_takes_all_and_gives_the_room_back(kernel: KernelSide, events: MappingEvents) -> None:
    assert events.drain() == []
    kernel.put(mapping(1))
    kernel.put(mapping(2))
    assert pids(events.drain()) == [1, 2]
    assert kernel.get(TAIL) == kernel.get(HEAD)
    assert events.drain() == []


@pytest.mark.parametrize("before_end", range(8, 120, 8))
def test_a_record_around_the_end_is_whole(before_end: int) -> None:
    kernel = KernelSide(begin=5 * RING_BYTES - before_end)
    events = MappingEvents([kernel.fd])
    kernel.put(mapping(1, b"/a/path/of/some/length"))
    kernel.put(mapping(2))
    assert [(event.pid, event.inode) for event in events.drain()] == [(1, 99), (2, 99)]
    events.close()


def test_a_full_ring_is_read_whole(kernel: KernelSide, events: MappingEvents) -> None:
    for turn in range(3):
        put_count = 0
        while kernel.put(mapping(put_count + turn)):
            put_count += 1
        assert pids(events.drain()) == list(range(turn, turn + put_count))
        kernel.put(lost(3))
    events.drain()
    assert events.lost_count == 9


@pytest.mark.parametrize("head", [RING_BYTES + 8, 1 << 63, 0], ids=["too far", "very far", "backwards"])
def test_a_position_that_cannot_be_is_lost_and_left_behind(head: int) -> None:
    kernel = KernelSide(begin=4096)
    events = MappingEvents([kernel.fd])
    kernel.set(HEAD, head + 4096 if head else 0)
    assert events.drain() == []
    assert events.lost_count == 1
    assert kernel.get(TAIL) == kernel.get(HEAD)
    kernel.put(mapping(3))
    assert pids(events.drain()) == [3]
    events.close()


def test_damage_in_the_ring_is_left_behind(kernel: KernelSide, events: MappingEvents) -> None:
    kernel.put(mapping(1))
    kernel.put(struct.pack("<IHH", MMAP2, 0, 0))
    kernel.put(mapping(2))
    assert pids(events.drain()) == [1]
    assert events.lost_count == 1
    kernel.put(mapping(3))
    assert pids(events.drain()) == [3]


def test_all_cpus_are_drained_and_their_losses_added() -> None:
    kernels = [KernelSide() for _ in range(3)]
    events = MappingEvents([kernel.fd for kernel in kernels])
    assert events.fds == tuple(kernel.fd for kernel in kernels)
    kernels[0].put(lost(2) + mapping(1))
    kernels[2].put(lost(3) + mapping(5) + mapping(2))
    assert pids(events.drain(range(3))) == [1, 2]
    assert events.lost_count == 5
    events.close()


def test_closing_twice_is_fine_and_closes_the_descriptors(kernel: KernelSide) -> None:
    events = MappingEvents([kernel.fd])
    events.close()
    events.close()
    assert events.fds == ()
    assert events.drain() == []
    with pytest.raises(OSError):
        os.fstat(kernel.fd)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_a_refusal_is_told_and_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    opened: list[int] = []

    def refuse(cpu: int) -> int:
        if opened:
            raise OSError(number, os.strerror(number))
        opened.append(KernelSide().fd)
        return opened[0]

    monkeypatch.setattr(bpf_syscall, "mapping_event_open", refuse)
    monkeypatch.setattr("bpfprof.kernel.mapping_events.cpus", lambda _which: [0, 1])
    with pytest.raises(UnsupportedError, match=os.strerror(number)) as caught:
        MappingEvents.open()
    assert ("forbidden" in str(caught.value)) == (number == errno.EACCES)
    with pytest.raises(OSError):
        os.fstat(opened[0])


def test_a_buffer_that_cannot_be_mapped_is_told_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open("/", os.O_RDONLY)
    monkeypatch.setattr(bpf_syscall, "mapping_event_open", lambda cpu: fd)
    with pytest.raises(UnsupportedError):
        MappingEvents.open()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_loading_it_does_not_load_numpy() -> None:
    code = "import sys, bpfprof.kernel.mapping_events; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
