"""The real kernel's side band, held against /proc/PID/maps of a child that maps when it is told to."""

from __future__ import annotations

import _ctypes
import mmap
import os
import select
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bpfprof.kernel.mapping_events import RING_BYTES, MappingEvent, MappingEvents
from bpfprof.model.ids import Pid
from bpfprof.proc.maps import Mapping, read_maps
from tests.integration.recorded import PYTHON, Target, needs_root, running

pytestmark = needs_root
WAIT_S = 20
PAGE_BYTES = mmap.PAGESIZE
ANONYMOUS_RECORD_BYTES = 80
# A line of arguments in, a line back when it is done.
CHILD = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
READ_EXEC = mmap.PROT_READ | mmap.PROT_EXEC

def anonymous(pages, protection):
    return libc.mmap(None, pages * mmap.PAGESIZE, protection, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)

def load(path):
    ctypes.CDLL(path)

def execute(path):
    os.execv(path, [path])

def map(pages):
    return anonymous(int(pages), READ_EXEC)

def protect(pages):
    address = anonymous(int(pages), mmap.PROT_READ | mmap.PROT_WRITE)
    assert libc.mprotect(address, int(pages) * mmap.PAGESIZE, READ_EXEC) == 0
    return address

def map_and_unmap(first, last):
    for number in range(int(first), int(last)):
        libc.munmap(anonymous(1 + number % 50, READ_EXEC), (1 + number % 50) * mmap.PAGESIZE)

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print("ready", flush=True)
for line in sys.stdin:
    what, *arguments = line.split("\\t")
    print(globals()[what](*(argument.strip() for argument in arguments)), flush=True)
"""


class Child:
    """A process on one CPU that maps what it is told to."""

    def __init__(self, target: Target) -> None:
        self.target, self.pid = target, Pid(target.pid)

    def answer(self) -> str:
        return self.target.answer().strip()

    def tell(self, *words: object) -> None:
        self.target.tell("\t".join(map(str, words)))

    def ask(self, *words: object) -> str:
        self.tell(*words)
        return self.answer()


@pytest.fixture
def child() -> Iterator[Child]:
    with running(PYTHON, "-c", CHILD) as target:
        yield Child(target)


class Listener:
    """The events and an epoll that wakes for them; nothing of the child's start is in it."""

    def __init__(self, child: Child) -> None:
        self.events = MappingEvents.open()
        self.child = child
        self.epoll = select.epoll()
        for fd in self.events.fds:
            self.epoll.register(fd, select.EPOLLIN)
        self.events.drain()

    def drain(self) -> list[MappingEvent]:
        return self.events.drain({self.child.pid})

    def awaited(self, is_it: Callable[[MappingEvent], bool]) -> MappingEvent:
        """The child's event that `is_it`, found by sleeping in the epoll and draining when it wakes."""
        deadline = time.monotonic() + WAIT_S
        while True:
            left_s = deadline - time.monotonic()
            assert left_s > 0 and self.epoll.poll(left_s), "no wake-up came with the event"
            for event in self.drain():
                if is_it(event):
                    return event


@pytest.fixture
def listener(child: Child) -> Iterator[Listener]:
    opened = Listener(child)
    yield opened
    opened.epoll.close()
    opened.events.close()


def mapping_at(event: MappingEvent) -> Mapping:
    return next(mapping for mapping in read_maps(event.pid) if mapping.start == event.start)


def assert_as_in_maps(event: MappingEvent) -> None:
    mapping = mapping_at(event)
    assert mapping.is_executable
    assert event.start + event.size_bytes == mapping.end
    assert event.inode == mapping.inode
    assert event.is_file


def test_a_loaded_library_is_told(listener: Listener, child: Child, tmp_path: Path) -> None:
    library = tmp_path / "a library é.so"
    shutil.copy(_ctypes.__file__, library)
    child.tell("load", library)
    event = listener.awaited(lambda event: event.inode == library.stat().st_ino)
    assert child.answer() == "None"
    assert event.pid == child.pid
    assert_as_in_maps(event)


def test_an_exec_is_told(listener: Listener, child: Child) -> None:
    program = os.path.realpath(shutil.which("cat") or "/bin/cat")
    child.tell("execute", program)
    event = listener.awaited(lambda event: event.inode == os.stat(program).st_ino)
    assert child.ask("I am another program now") == "I am another program now"
    assert_as_in_maps(event)


@pytest.mark.parametrize("call", ["map", "protect"])
def test_executable_memory_without_a_file_is_told(listener: Listener, child: Child, call: str) -> None:
    child.tell(call, 3)
    event = listener.awaited(lambda event: not event.is_file)
    address = int(child.answer())
    assert event.start <= address < address + 3 * PAGE_BYTES <= event.start + event.size_bytes
    assert mapping_at(event).is_executable


def sizes_in_pages(events: list[MappingEvent]) -> list[int]:
    return [event.size_bytes // PAGE_BYTES for event in events]


def expected_sizes(first: int, last: int) -> list[int]:
    return [1 + number % 50 for number in range(first, last)]


def test_every_record_is_read_around_the_end_of_the_ring(listener: Listener, child: Child) -> None:
    step = RING_BYTES // ANONYMOUS_RECORD_BYTES // 3
    for turn in range(12):
        child.ask("map_and_unmap", turn * step, (turn + 1) * step)
        assert sizes_in_pages(listener.drain()) == expected_sizes(turn * step, (turn + 1) * step)
    assert listener.events.lost_count == 0


def test_more_than_fits_is_counted_and_later_events_come(listener: Listener, child: Child) -> None:
    count = 2 * RING_BYTES // ANONYMOUS_RECORD_BYTES
    child.ask("map_and_unmap", 0, count)
    found = sizes_in_pages(listener.drain())
    assert 0 < len(found) < count
    assert found == expected_sizes(0, len(found))
    # The kernel tells with its next record; what others mapped may have been lost before the ring was full.
    assert listener.events.lost_count < count - len(found)

    child.tell("map", 77)
    event = listener.awaited(lambda event: event.size_bytes == 77 * PAGE_BYTES)
    assert event.start == int(child.answer())
    assert listener.events.lost_count >= count - len(found)
    assert listener.drain() == []


def test_what_is_not_executable_is_not_told(listener: Listener, child: Child) -> None:
    child.ask("protect", 1)  # memory that is mapped without the permission, and gets it
    assert len(listener.drain()) == 1


def test_closing_ends_it(child: Child) -> None:
    before = set(os.listdir("/proc/self/fd"))
    events = MappingEvents.open()
    assert len(set(os.listdir("/proc/self/fd")) - before) >= len(events.fds) > 0
    events.close()
    assert set(os.listdir("/proc/self/fd")) == before
