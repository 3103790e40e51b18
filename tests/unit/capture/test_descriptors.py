"""What kind of file the descriptor of a call is, and whether a poll() waits for a device."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from bpfprof.capture import descriptors
from bpfprof.capture.descriptors import DescriptorKinds
from bpfprof.model.ids import Pid
from bpfprof.model.samples import FD_CALLS, WAIT_DTYPE, FdKind
from bpfprof.model.syscalls import syscall_numbers
from bpfprof.proc.listening import Listening
from bpfprof.proc.memory import ProcessMemory

(READ,), (FUTEX,), (POLL,), (PPOLL,) = (syscall_numbers(name) for name in ("read", "futex", "poll", "ppoll"))
ME = os.getpid()
POLLIN, POLLPRI, POLLOUT = 1, 2, 4
ADDRESS = 0x7000_0000
UNKNOWN, FILE, PIPE, SOCKET, DEVICE, EVENT, PROCESS = FdKind


@pytest.fixture
def fds(tmp_path: Path) -> Iterator[dict[str, int]]:
    """Descriptors of this process."""
    pair, ends = socket.socketpair(), os.pipe()
    opened = {
        "pipe": ends[0],
        "fifo": ends[1],
        "socket": pair[0].detach(),
        "other": pair[1].detach(),
        "file": os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT),
        "directory": os.open(tmp_path, os.O_RDONLY),
        "device": os.open("/dev/null", os.O_RDWR),
        "eventfd": ctypes.CDLL(None).eventfd(0, 0),  # os.eventfd came with 3.10
    }
    yield opened
    for fd in opened.values():
        os.close(fd)


def of_calls(*calls: tuple[int, int, int]) -> list[int]:
    """Kinds of (pid, call, first argument)."""
    pids, numbers, first = zip(*calls)
    kinds = DescriptorKinds().of_calls(
        np.array(pids, np.uint32), np.array(numbers, np.int16), np.array(first, np.uint64)
    )
    assert kinds.dtype == np.uint8
    found: list[int] = kinds.tolist()
    return found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("pipe", PIPE), ("fifo", PIPE), ("socket", SOCKET), ("file", FILE), ("directory", FILE)),
        *(("device", DEVICE), ("eventfd", EVENT)),
    ],
)
def test_kinds_of_files(fds: dict[str, int], name: str, kind: FdKind) -> None:
    assert of_calls((ME, READ, fds[name])) == [kind]


def test_calls_that_take_no_descriptor(fds: dict[str, int]) -> None:
    assert of_calls(*((ME, call, fds["pipe"]) for call in (FUTEX, -1, -2, -32768, 32767, POLL))) == [UNKNOWN] * 6


def test_each_call_that_takes_one(fds: dict[str, int]) -> None:
    assert of_calls(*((ME, call, fds["pipe"]) for call in FD_CALLS)) == [PIPE] * len(FD_CALLS)


def test_what_is_no_descriptor(fds: dict[str, int]) -> None:
    assert of_calls((ME, READ, 0xFFFFFFFF), (ME, READ, (1 << 64) - 1), (ME, READ, 99_999)) == [UNKNOWN] * 3
    assert of_calls((4_194_305, READ, fds["pipe"]), (0, READ, fds["pipe"])) == [UNKNOWN] * 2, "no such process"


def test_only_32_bits_are_a_descriptor(fds: dict[str, int]) -> None:
    """int fd: what the register holds above is nothing."""
    assert of_calls((ME, READ, 0xDEAD_0000_0000_0000 | fds["pipe"])) == [PIPE]


def test_a_batch_keeps_its_order(fds: dict[str, int]) -> None:
    names = ["socket", "pipe", "file", "socket", "device", "pipe"]
    assert of_calls(*((ME, READ, fds[name]) for name in names)) == [SOCKET, PIPE, FILE, SOCKET, DEVICE, PIPE]
    kinds = DescriptorKinds()
    assert kinds.of_calls(np.zeros(0, np.uint32), np.zeros(0, np.int16), np.zeros(0, np.uint64)).tolist() == []


class Looked:
    """Stands in for looking at /proc; counts it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds: dict[tuple[int, int], FdKind] = {}
        self.counts: Counter[tuple[int, int]] = Counter()
        self.now = 1000.0
        monkeypatch.setattr(descriptors, "_look", self.look)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def look(self, pid: int, fd: int) -> tuple[FdKind, str, int]:
        self.counts[pid, fd] += 1
        return self.kinds.get((pid, fd), UNKNOWN), f"fd {fd}", 1000 + fd


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    return Looked(monkeypatch)


def one(kinds: DescriptorKinds, pid: int, fd: int) -> int:
    return int(kinds.of_calls(np.array([pid], np.uint32), np.array([READ], np.int16), np.array([fd], np.uint64))[0])


def test_a_descriptor_is_looked_at_once_in_a_while(looked: Looked) -> None:
    kinds = DescriptorKinds()
    looked.kinds[1, 3] = PIPE
    assert [one(kinds, 1, 3) for _ in range(3)] == [PIPE] * 3 and looked.counts[1, 3] == 1
    looked.kinds[1, 3] = SOCKET  # closed and given again
    looked.now += descriptors._REMEMBERED_S * 0.99
    assert one(kinds, 1, 3) == PIPE
    looked.now += descriptors._REMEMBERED_S * 0.02
    assert one(kinds, 1, 3) == SOCKET
    assert one(kinds, 2, 3) == UNKNOWN, "another process's"


def test_right_after_the_machine_was_started(looked: Looked) -> None:
    looked.now, looked.kinds[1, 3] = 0.0, PIPE
    assert one(DescriptorKinds(), 1, 3) == PIPE


def test_what_is_remembered_has_a_bound(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "_REMEMBERED_COUNT", 10)
    kinds = DescriptorKinds()
    for fd in range(1000):
        one(kinds, 1, fd)
        assert len(kinds._known) <= 10


# --- poll()


class Memory:
    """Memory of a process: address -> bytes; what was read."""

    def __init__(self, content: dict[int, bytes]) -> None:
        self.content = content
        self.reads: list[tuple[int, int]] = []

    def read(self, address: int, size: int) -> bytes | None:
        self.reads.append((address, size))
        data = self.content.get(address, b"")[:size]
        return data if len(data) == size else None


def pollfds(*entries: tuple[int, int]) -> bytes:
    """struct pollfd (fd, events), each with some revents."""
    return b"".join(struct.pack("<iHH", fd, events, POLLIN) for fd, events in entries)


def polls(*calls: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.void]]:
    """Waits in (call, address, count)."""
    waits = np.zeros(len(calls), WAIT_DTYPE)
    for row, (call, *args) in zip(waits, calls):
        row["syscall"], row["args"][:2] = call, args
    return waits


def kind_of_poll(looked: Looked, data: bytes, count: int | None = None, call: int = POLL) -> int:
    """Of one poll() on this list; fds 3 and 4 are a pipe and a device."""
    looked.kinds |= {(7, 3): PIPE, (7, 4): DEVICE}
    memory = cast(ProcessMemory, Memory({ADDRESS: data}))
    waits = polls((call, ADDRESS, len(data) // 8 if count is None else count))
    (kind,) = DescriptorKinds().of_polls(np.array([7], np.uint32), waits, lambda pid: memory if pid == 7 else None)
    return int(kind)


@pytest.mark.parametrize("call", [POLL, PPOLL])
def test_a_poll_of_a_device(looked: Looked, call: int) -> None:
    assert kind_of_poll(looked, pollfds((4, POLLIN)), call=call) == DEVICE
    assert kind_of_poll(looked, pollfds((3, POLLIN), (3, POLLOUT), (4, POLLIN | POLLPRI)), call=call) == DEVICE


def test_a_poll_of_other_things(looked: Looked) -> None:
    """The kind of a poll says that there is a device; all else waits for several things of any kind."""
    assert kind_of_poll(looked, pollfds((3, POLLIN))) == UNKNOWN
    assert kind_of_poll(looked, pollfds((4, POLLIN)), call=READ) == UNKNOWN
    assert kind_of_poll(looked, pollfds((4, POLLIN)), call=-1) == UNKNOWN


def test_a_poll_of_a_process(looked: Looked) -> None:
    looked.kinds[7, 5] = PROCESS
    assert kind_of_poll(looked, pollfds((5, POLLIN))) == PROCESS
    assert kind_of_poll(looked, pollfds((5, POLLIN), (3, POLLIN))) == UNKNOWN


def test_a_real_process() -> None:
    with subprocess.Popen(["sleep", "300"]) as child:
        fd = os.pidfd_open(child.pid)
        kinds = DescriptorKinds()
        assert (kinds.process(ME, fd), kinds.name_now(ME, fd)) == (child.pid, f"process {child.pid}")
        child.kill()
        child.wait()
        assert DescriptorKinds().process(ME, fd) is None and DescriptorKinds().process(ME, 0) is None
        os.close(fd)


def test_descriptors_that_are_left_out(looked: Looked) -> None:
    """A negative one is ignored: poll(2)."""
    assert kind_of_poll(looked, pollfds((-1, POLLIN), (4, POLLIN))) == DEVICE
    assert kind_of_poll(looked, pollfds((-1, POLLIN), (-4, POLLIN))) == UNKNOWN
    assert set(looked.counts) == {(7, 4)}


@pytest.mark.parametrize(
    "garbage",
    [
        bytes(8),
        struct.pack("<iHH", 5, 0x4000, 0),
        struct.pack("<iHH", 5, 0x8001, 0),
        b"\xff" * 8,
        struct.pack("<Q", 0x7F00_1234_5678),
        b"garbage!",
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_memory_that_is_used_for_something_else(looked: Looked, garbage: bytes, is_first: bool) -> None:
    device = pollfds((4, POLLIN))
    assert kind_of_poll(looked, garbage + device if is_first else device + garbage) == UNKNOWN
    assert not looked.counts, "no descriptor is looked at then"


def test_random_memory_is_no_list(looked: Looked) -> None:
    data = np.random.default_rng(1).bytes(64 * 8)
    assert [kind_of_poll(looked, data[8 * n :], 3) for n in range(60)] == [UNKNOWN] * 60


def test_a_list_that_cannot_be_read(looked: Looked) -> None:
    assert kind_of_poll(looked, pollfds((4, POLLIN)), count=2) == UNKNOWN
    assert kind_of_poll(looked, b"", count=1) == UNKNOWN


def test_how_many_descriptors_are_looked_at(looked: Looked) -> None:
    assert kind_of_poll(looked, pollfds((4, POLLIN)), count=0) == UNKNOWN
    many = pollfds(*[(3, POLLIN)] * 64, (4, POLLIN))
    assert kind_of_poll(looked, many[8:], count=64) == DEVICE
    assert kind_of_poll(looked, many, count=65) == UNKNOWN
    assert kind_of_poll(looked, many, count=(1 << 64) - 1) == UNKNOWN


def test_a_process_that_is_gone(looked: Looked) -> None:
    waits = polls((POLL, ADDRESS, 1))
    assert DescriptorKinds().of_polls(np.array([7], np.uint32), waits, lambda _: None).tolist() == [UNKNOWN]


def test_a_list_is_read_once_in_a_batch(looked: Looked) -> None:
    looked.kinds |= {(7, 4): DEVICE, (8, 4): PIPE}
    memories = {7: Memory({ADDRESS: pollfds((4, POLLIN)), 5: pollfds((4, 1))}), 8: Memory({ADDRESS: pollfds((4, 1))})}
    waits = polls((POLL, ADDRESS, 1), (READ, 0, 0), (PPOLL, ADDRESS, 1), (POLL, ADDRESS, 1), (POLL, 5, 1))
    pids = np.array([7, 7, 7, 8, 7], np.uint32)
    kinds = DescriptorKinds().of_polls(pids, waits, lambda pid: cast(ProcessMemory, memories[pid]))
    assert kinds.tolist() == [DEVICE, UNKNOWN, DEVICE, UNKNOWN, DEVICE]
    assert memories[7].reads == [(ADDRESS, 8), (5, 8)] and memories[8].reads == [(ADDRESS, 8)]


def test_a_batch_of_very_many_polls(looked: Looked) -> None:
    looked.kinds[7, 4] = DEVICE
    count = descriptors._POLLS_LIMIT + 500
    memory = Memory({8 * n + 8: pollfds((4, POLLIN)) for n in range(count)})
    waits = polls(*((POLL, 8 * n + 8, 1) for n in range(count)))
    kinds = DescriptorKinds().of_polls(np.full(count, 7, np.uint32), waits, lambda _: cast(ProcessMemory, memory))
    assert kinds.tolist() == [DEVICE] * descriptors._POLLS_LIMIT + [UNKNOWN] * 500


def test_a_real_poll(fds: dict[str, int]) -> None:
    """This process's own memory and descriptors."""
    lists = [((fds["device"], POLLIN),), ((fds["pipe"], POLLIN), (fds["socket"], POLLOUT))]
    buffers = [ctypes.create_string_buffer(pollfds(*entries)) for entries in lists]
    waits = polls(*((POLL, ctypes.addressof(buffer), len(entries)) for buffer, entries in zip(buffers, lists)))
    with ProcessMemory(Pid(ME)) as memory:
        kinds = DescriptorKinds().of_polls(np.full(2, ME, np.uint32), waits, lambda _: memory)
    assert kinds.tolist() == [DEVICE, UNKNOWN]


# --- what they are of


class Asked:
    """Stands in for the names of sockets; counts what is asked."""

    def __init__(self) -> None:
        self.inodes: list[int] = []

    def name(self, _pid: Pid, inode: int) -> str:
        self.inodes.append(inode)
        return "127.0.0.1:80"


def test_a_socket_is_asked_for_its_name_only_where_it_is_told(fds: dict[str, int]) -> None:
    asked = Asked()
    kinds = DescriptorKinds(cast(Any, asked))
    assert one(kinds, ME, fds["socket"]) == SOCKET and not asked.inodes, "asking costs more than all else of it"
    assert [kinds.name_now(ME, fds["socket"]) for _ in range(3)] == ["127.0.0.1:80"] * 3
    assert asked.inodes == [os.fstat(fds["socket"]).st_ino]


class Kept:
    """A sink."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, kind: str, fields: Any = None, arrays: Any = None) -> None:
        assert kind == "objects" and arrays is None
        self.rows += fields["rows"]


def inode(path: int) -> int:
    return 1 << 60 | os.fstat(path).st_ino


def waits_in(*calls: tuple[str, int]) -> np.ndarray[Any, np.dtype[np.void]]:
    """Waits in (call, descriptor)."""
    return polls(*((next(iter(syscall_numbers(call))), fd) for call, fd in calls))


def test_objects_are_named_once(fds: dict[str, int], tmp_path: Path) -> None:
    kinds, sink = DescriptorKinds(), Kept()
    names = ["device", "file", "directory"]
    waits = waits_in(("read", fds["device"]), ("fsync", fds["file"]), ("read", fds["directory"]), ("futex", 1))
    told = np.array([inode(fds[name]) for name in names] + [0], np.uint64)
    for _ in range(2):
        *places, none = kinds.objects(np.full(len(waits), ME, np.uint32), waits, told).tolist()
        kinds.write_new(cast(Any, sink))
    assert [row["index"] for row in sink.rows] == [0, 1, 2] and not none
    assert [sink.rows[place - 1]["name"] for place in places] == ["/dev/null", str(tmp_path / "file"), str(tmp_path)]


def test_an_ioctl_is_named_by_its_device_and_request(fds: dict[str, int]) -> None:
    kinds, sink = DescriptorKinds(), Kept()
    waits = waits_in(*[("ioctl", fds["device"])] * 3, ("read", fds["device"]))
    waits["args"][:, 1] = 0x1261, 0x4C05, 0x1261, 0x1261
    told = np.full(len(waits), inode(fds["device"]), np.uint64)
    places = kinds.objects(np.full(len(waits), ME, np.uint32), waits, told).tolist()
    kinds.write_new(cast(Any, sink))
    names = [sink.rows[place - 1]["name"] for place in places]
    assert names == ["/dev/null BLKFLSBUF", "/dev/null LOOP_GET_STATUS64", "/dev/null BLKFLSBUF", "/dev/null"]


def test_a_descriptor_that_is_of_something_else_by_now(fds: dict[str, int], tmp_path: Path) -> None:
    """Its name is known if it was seen before; a file that is locked is one in any case."""
    kinds, sink = DescriptorKinds(), Kept()
    was, told = inode(fds["file"]), lambda inode: np.array([inode], np.uint64)
    pids = np.array([ME], np.uint32)
    assert kinds.objects(pids, waits_in(("read", fds["device"])), told(was)).tolist() == [0]
    assert kinds.objects(pids, waits_in(("flock", fds["device"])), told(was)).tolist() == [1]
    assert kinds.objects(pids, waits_in(("read", fds["file"])), told(was)).tolist() == [2]
    assert kinds.objects(pids, waits_in(("read", fds["device"])), told(was)).tolist() == [2]
    kinds.write_new(cast(Any, sink))
    assert [row["name"] for row in sink.rows] == [f"inode {was & (1 << 60) - 1}", str(tmp_path / "file")]


def test_addresses_are_told(looked: Looked) -> None:
    kinds, sink = DescriptorKinds(), Kept()
    address = int.from_bytes(bytes([10, 0, 0, 5]), sys.byteorder)
    told = np.array([kind << 60 | 5432 << 32 | address for kind in (2, 3, 4)], np.uint64)
    waits = waits_in(("recvfrom", 3), ("poll", 3), ("accept4", 4))
    assert kinds.objects(np.full(3, 7, np.uint32), waits, told).tolist() == [1, 2, 3]
    kinds.write_new(cast(Any, sink))
    there = "10.0.0.5:5432"
    assert [row["name"] for row in sink.rows] == [there, f"udp {there}", f"listening on {there}"]
    assert not looked.counts


def test_how_many_are_named(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "_NAMED_LIMIT", 10)
    kinds = DescriptorKinds()
    told = np.array([2 << 60 | port << 32 for port in range(1, 31)], np.uint64)
    waits = waits_in(*[("recvfrom", 3)] * 30)
    assert kinds.objects(np.full(30, 7, np.uint32), waits, told).tolist() == [*range(1, 11), *[0] * 20]


def test_clients_are_told_from_servers() -> None:
    kinds, me = DescriptorKinds(), Pid(ME)
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        asking = stack.enter_context(socket.create_connection(server.getsockname()))
        answering = stack.enter_context(server.accept()[0])
        ends = ["{}:{}".format(*it.getsockname()) for it in (asking, answering)]
        places = [kinds.place(name) for name in (*ends, "/var/log/messages")]
        assert kinds.accepted([me, me], Listening()) == places[:1]
