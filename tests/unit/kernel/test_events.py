"""A ring buffer laid out in a memory file as the kernel lays out its own."""

from __future__ import annotations

import mmap
import os
import random
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from bpfprof.abi import dtypes
from bpfprof.kernel.events import RingBuffer

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
RING_BYTES = 4 * PAGE_BYTES
BUSY, DISCARDED = 1 << 31, 1 << 30
ROW = np.dtype([("number", "<u8"), ("half", "<u4"), ("rest", "<u4")])


class KernelSide:
    """The writing end: what kernel/bpf/ringbuf.c does. The data lies in the file twice, as the kernel maps it twice."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * PAGE_BYTES + 2 * RING_BYTES)
        self.map = mmap.mmap(self.fd, 2 * PAGE_BYTES + 2 * RING_BYTES)

    def position(self, page: int) -> int:
        return int(struct.unpack_from("<Q", self.map, page * PAGE_BYTES)[0])

    def set_position(self, page: int, value: int) -> None:
        struct.pack_into("<Q", self.map, page * PAGE_BYTES, value)

    def poke(self, position: int, data: bytes) -> None:
        for index, byte in enumerate(data):
            at = 2 * PAGE_BYTES + (position + index) % RING_BYTES
            self.map[at] = self.map[at + RING_BYTES] = byte

    def put(self, payload: bytes, flags: int = 0) -> int | None:
        """Appends a record; its position, None when there is no room."""
        position, size = self.position(1), 8 + (len(payload) + 7 & ~7)
        if position + size - self.position(0) > RING_BYTES:
            return None
        self.poke(position, struct.pack("<II", len(payload) | flags, 0) + payload)
        self.set_position(1, position + size)
        return position

    def set_flags(self, position: int, length: int, flags: int) -> None:
        self.poke(position, struct.pack("<I", length | flags))


@pytest.fixture
def kernel() -> Iterator[KernelSide]:
    side = KernelSide()
    yield side
    side.map.close()
    os.close(side.fd)


@pytest.fixture
def ring(kernel: KernelSide) -> RingBuffer:
    return RingBuffer(kernel.fd, RING_BYTES)


def records(ring: RingBuffer) -> list[bytes]:
    return [bytes(record) for record in ring.drain_records()]


def number(value: int) -> bytes:
    return np.array([(value, value % 7, 0)], ROW).tobytes()


def test_an_empty_ring(kernel: KernelSide, ring: RingBuffer) -> None:
    assert records(ring) == [] and len(ring.drain_fixed(ROW)) == 0
    assert kernel.position(0) == 0


def test_records_of_any_size_come_in_order(kernel: KernelSide, ring: RingBuffer) -> None:
    sent = [b"a", b"", b"12345678", b"123456789", bytes(1000)]
    for payload in sent:
        kernel.put(payload)
    assert records(ring) == sent
    assert kernel.position(0) == kernel.position(1), "the space was given back"
    assert records(ring) == []


def test_a_record_being_written_holds_back_what_follows(kernel: KernelSide, ring: RingBuffer) -> None:
    kernel.put(b"first")
    position = kernel.put(b"second", BUSY)
    kernel.put(b"third")
    assert position is not None
    assert records(ring) == [b"first"] and records(ring) == []
    kernel.set_flags(position, 6, 0)
    assert records(ring) == [b"second", b"third"]


def test_discarded_records_are_left_out(kernel: KernelSide, ring: RingBuffer) -> None:
    for payload, flags in ((b"one", 0), (b"two", DISCARDED), (b"three", 0), (b"four", DISCARDED)):
        kernel.put(payload, flags)
    assert records(ring) == [b"one", b"three"]
    assert kernel.position(0) == kernel.position(1)


def test_fixed_records(kernel: KernelSide, ring: RingBuffer) -> None:
    for value in range(10):
        kernel.put(number(value))
    rows = ring.drain_fixed(ROW)
    assert rows["number"].tolist() == list(range(10)) and rows["half"].tolist() == [value % 7 for value in range(10)]
    assert kernel.position(0) == kernel.position(1)


def test_fixed_records_stop_at_one_being_written(kernel: KernelSide, ring: RingBuffer) -> None:
    kernel.put(number(0))
    position = kernel.put(number(1), BUSY)
    kernel.put(number(2))
    assert position is not None
    assert ring.drain_fixed(ROW)["number"].tolist() == [0]
    assert len(ring.drain_fixed(ROW)) == 0
    kernel.set_flags(position, ROW.itemsize, 0)
    assert ring.drain_fixed(ROW)["number"].tolist() == [1, 2]


def test_records_are_a_copy(kernel: KernelSide, ring: RingBuffer) -> None:
    kernel.put(number(1))
    kernel.put(b"text of it")
    kept = ring.drain_records()
    kernel.poke(0, b"\xff" * RING_BYTES)
    assert [bytes(record) for record in kept] == [number(1), b"text of it"]


def test_fixed_rows_are_a_copy(kernel: KernelSide, ring: RingBuffer) -> None:
    kernel.put(number(5))
    rows = ring.drain_fixed(ROW)
    kernel.poke(0, b"\xff" * RING_BYTES)
    assert rows["number"].tolist() == [5]


def test_a_full_ring_is_read_whole(kernel: KernelSide, ring: RingBuffer) -> None:
    count = 0
    while kernel.put(number(count)) is not None:
        count += 1
    assert ring.drain_fixed(ROW)["number"].tolist() == list(range(count))


def test_fixed_records_around_the_end_many_times(kernel: KernelSide, ring: RingBuffer) -> None:
    chance = random.Random(1)
    sent = 0
    received: list[int] = []
    while kernel.position(1) < 6 * RING_BYTES:
        for _ in range(chance.randrange(1, 500)):
            if kernel.put(number(sent)) is not None:
                sent += 1
        received += ring.drain_fixed(ROW)["number"].tolist()
    assert received == list(range(sent))


def test_records_of_any_size_around_the_end_many_times(kernel: KernelSide, ring: RingBuffer) -> None:
    chance = random.Random(2)
    sent: list[bytes] = []
    received: list[bytes] = []
    while kernel.position(1) < 6 * RING_BYTES:
        for _ in range(chance.randrange(1, 30)):
            payload = chance.randbytes(chance.randrange(0, 900))
            if kernel.put(payload) is not None:
                sent.append(payload)
        received += records(ring)
    assert received == sent


def test_a_position_beyond_32_bits(kernel: KernelSide, ring: RingBuffer) -> None:
    far = (1 << 40) + RING_BYTES - 24
    kernel.set_position(0, far)
    kernel.set_position(1, far)
    for value in range(3):
        kernel.put(number(value))
    assert ring.drain_fixed(ROW)["number"].tolist() == [0, 1, 2]
    assert kernel.position(0) == far + 3 * 24


def test_events_of_the_kernel_side_fill_their_records_to_the_byte() -> None:
    # drain_fixed() steps by the size of the struct, the kernel by that rounded up to 8.
    assert dtypes.EVENT_DTYPE.itemsize % 8 == 0
