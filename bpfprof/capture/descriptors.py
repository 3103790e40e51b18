"""What a descriptor of a target is: tells a read of a pipe from a read of a socket, and which socket it is."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.capture.numbers import by_distinct
from bpfprof.capture.polled import OPEN_ENDS
from bpfprof.model.grouping import group_numbers
from bpfprof.model.ids import Pid
from bpfprof.model.ioctls import request_text
from bpfprof.model.samples import FD_CALLS, SOCKET_CALLS, FdKind
from bpfprof.model.syscalls import syscall_numbers
from bpfprof.proc.listening import Listening
from bpfprof.proc.living import living
from bpfprof.proc.memory import ProcessMemory
from bpfprof.proc.reader import reader
from bpfprof.proc.sockets import SocketNames
from bpfprof.recording.tables import RecordedObject, table_row
from bpfprof.recording.writer import Sink

# By number of the call; -1 (in no call) is the last element.
_TAKES_DESCRIPTOR = np.zeros(1 << 16, np.bool_)
_TAKES_DESCRIPTOR[FD_CALLS] = True
_IS_POLL = np.zeros(1 << 16, np.bool_)
_IS_POLL[sorted(syscall_numbers("poll", "ppoll"))] = True
# Also those of sockets, whose number alone says that.
_HAS_OBJECT = _TAKES_DESCRIPTOR.copy()
_HAS_OBJECT[sorted(syscall_numbers(*SOCKET_CALLS))] = True
_POLLFD = struct.Struct("<ihH")  # struct pollfd: fd, events, revents; include/uapi/asm-generic/poll.h
_POLL_EVENTS = 0x3FFF
_INODE = abi.ENUMS["bp_object_kind"]["BP_OBJECT_INODE"]
_OBJECT_KIND_BIT = abi.CONSTANTS["BP_OBJECT_KIND_BIT"]
_SAID = {  # with an address
    int(abi.ENUMS["bp_object_kind"]["BP_OBJECT_OTHER_PEER"]): "udp ",
    int(abi.ENUMS["bp_object_kind"]["BP_OBJECT_LISTENS"]): "listening on ",
}
(_IOCTL,) = syscall_numbers("ioctl")
_FILE_LOCKS = syscall_numbers("flock", "fcntl")
_POLLED_BIT, _POLLED = abi.CONSTANTS["BP_POLLED_BIT"], (1 << abi.CONSTANTS["BP_POLLED_BITS"]) - 1
_POLLED_LIMIT, _POLLS_LIMIT = 64, 1000  # descriptors of one call; calls looked at together
_REMEMBERED_S, _NEW_S = 1.0, 0.1  # a descriptor can be closed and given again
_REMEMBERED_COUNT = 10_000
_NAMED_LIMIT = 10_000  # objects of one recording; a host makes new connections for as long as it is watched
_NAME_LENGTH = 4096
_ADDRESS = re.compile(r"(?:[\d.]+|\[.+\]):\d+")
_EVENTFD = "anon_inode:[eventfd]"
_PIDFDS = ("anon_inode:[pidfd]", "pidfd:[")  # the second in some kernels from 6.9 on
_PIDFD = re.compile(rb"^Pid:\s*([1-9]\d*)", re.MULTILINE)  # pidfd_show_fdinfo(), fs/pidfs.c
_INFO_BYTES = 4096
_EVENTS = (_EVENTFD, "anon_inode:[signalfd]", "anon_inode:inotify", "anon_inode:[inotify]")


class DescriptorKinds:
    """Looked up when a wait is drained, so a descriptor that was closed meanwhile is unknown."""

    def __init__(self, sockets: SocketNames | None = None) -> None:
        self._known: dict[tuple[int, int], tuple[float, FdKind, str | None, int]] = {}
        self._name_of_inode: dict[tuple[int, int], str] = {}  # of a process
        self._sockets = sockets or SocketNames()
        self._place_of: dict[str, int] = {}  # of a name in the table of objects, from 1 on
        self._rows: list[dict[str, Any]] = []

    def of_calls(
        self, pids: npt.NDArray[np.uint32], calls: npt.NDArray[np.int16], first: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.uint8]:
        """A FdKind for each call with this first argument; UNKNOWN for calls that take no descriptor."""
        kinds = np.zeros(len(calls), np.uint8)
        chosen = np.flatnonzero(_TAKES_DESCRIPTOR[calls])
        keys = pids[chosen].astype(np.uint64) << np.uint64(32) | first[chosen] & np.uint64(0xFFFFFFFF)
        kinds[chosen] = by_distinct(keys, lambda key: self._kind(key >> 32, key & 0xFFFFFFFF))
        return kinds

    def objects(
        self, pids: npt.NDArray[np.uint32], waits: npt.NDArray[np.void], told: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.uint32]:
        """What each wait's descriptor is of: a place in the table of objects, 0: none, or not known.

        told: `object` of each wait, as the kernel side has it.
        """
        places = np.zeros(len(waits), np.uint32)
        chosen = np.flatnonzero(told)
        fds = waits["args"][chosen, 0] & np.uint64(0xFFFFFFFF)  # also of a poll() of one
        asked = waits["args"][chosen, 1] & np.uint64(0xFFFFFFFF)
        requests = np.where(waits["syscall"][chosen] == _IOCTL, asked, np.uint64(0))
        first, number = group_numbers([pids[chosen], fds, told[chosen], requests])
        columns = (pids[chosen][first], fds[first], told[chosen][first], waits["syscall"][chosen][first])
        names = (self._name(*each) for each in zip(*(column.tolist() for column in columns)))
        found = [
            self.place(f"{name} {request_text(request)}" if name and request else name)
            for name, request in zip(names, requests[first].tolist())
        ]
        places[chosen] = np.array(found, np.uint32)[number]
        return places

    def objects_now(self, pids: npt.NDArray[np.uint32], waits: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
        """The same of waits that go on, or ended just now, by what their descriptors are of at this moment."""
        takes_one = _HAS_OBJECT[waits["syscall"]] | (
            _IS_POLL[waits["syscall"]] & (waits["args"][:, 0] >> np.uint64(_POLLED_BIT) > 0)
        )
        places = np.zeros(len(waits), np.uint32)
        for place in np.flatnonzero(takes_one)[:_POLLS_LIMIT].tolist():
            pid, fd = int(pids[place]), int(waits["args"][place, 0]) & 0xFFFFFFFF
            places[place] = self.place(self.name_now(pid, fd))
        return places

    def name_now(self, pid: int, fd: int) -> str:
        """What a descriptor is of now: a path, or the other end of a socket; "": not known."""
        return self._seen(pid, fd)[1]

    def process(self, pid: Pid, fd: int) -> Pid | None:
        """The process that a pidfd is of; None: it is none, or that process has ended."""
        kind, name, _ = self._seen(pid, fd)
        return Pid(int(name.rpartition(" ")[2])) if kind == FdKind.PROCESS and name else None

    def other_end(self, pid: Pid, fd: int) -> int:
        """The inode of the socket at the other end, on this machine, of one of this process; 0: not known."""
        kind, name, inode = self._seen(pid, fd)
        if kind != FdKind.SOCKET:
            return 0
        return self._sockets.other_end(pid, inode) if _ADDRESS.fullmatch(name) else self._sockets.peer(pid, inode)

    def are_pipes(self, pid: Pid, fds: Sequence[int]) -> bool:
        return len(fds) <= _POLLED_LIMIT and all(self._kind(pid, fd) == FdKind.PIPE for fd in fds)

    def asked(self, pid: Pid, fds: Sequence[int]) -> int | None:
        """Of descriptors that an event loop waits for one of a connection that has sent something, and has never got
        anything; None: there is none, or something else may wake the loop than what it asked and itself."""
        connections = []
        for fd in fds if len(fds) <= _POLLED_LIMIT else ():
            kind, name, inode = self._seen(pid, fd)
            if kind == FdKind.SOCKET and _ADDRESS.fullmatch(name):
                connections.append((fd, inode))
            elif not (self.are_own_pairs(pid, [fd]) if kind == FdKind.SOCKET else _is_eventfd(pid, fd)):
                return None
        if any(self._sockets.is_accepted(pid, inode) for _, inode in connections):
            return None
        return next((fd for fd, inode in connections if self._sockets.waits_for_answer(pid, inode)), None)

    def are_own_pairs(self, pid: Pid, fds: Iterable[int]) -> bool:
        """Whether each is a Unix socket whose other end this process alone has."""
        peers = [self._sockets.peer(pid, self._looked(pid, fd)[2]) for fd in fds]
        return all(peers) and all(OPEN_ENDS.of_socket(pid, peer) == {pid} for peer in peers)

    def accepted(self, pids: Iterable[Pid], listening: Listening) -> list[int]:
        """Places of those that are now the other ends of connections which others made to a process of these."""
        places = {name: place for name, place in self._place_of.items() if _ADDRESS.fullmatch(name)}
        return sorted(
            {places[name] for pid in (pids if places else ()) for name in listening.clients(pid) & places.keys()}
        )

    def write_new(self, sink: Sink) -> None:
        """Rows of the table of objects that the recording does not have yet."""
        if self._rows:
            sink.write("objects", {"rows": self._rows})
            self._rows = []

    def _name(self, pid: int, fd: int, told: int, call: int) -> str:
        kind, rest = divmod(told, 1 << _OBJECT_KIND_BIT)
        if kind != _INODE:
            address = f"{ipaddress.IPv4Address(struct.pack('=I', rest & 0xFFFFFFFF))}:{rest >> 32}"
            return _SAID.get(kind, "") + address
        # It may be closed, or of something else by now.
        _, name, inode = self._seen(pid, fd)
        if inode & (1 << _OBJECT_KIND_BIT) - 1 == rest:
            if name and len(self._name_of_inode) < _REMEMBERED_COUNT:
                self._name_of_inode[pid, rest] = name
            return name
        return self._name_of_inode.get((pid, rest), "") or (f"inode {rest}" if call in _FILE_LOCKS else "")

    def place(self, name: str) -> int:
        """In the table of objects, which it is added to; 0: of "", or there are too many."""
        place = self._place_of.get(name, 0)
        if name and not place and len(self._place_of) < _NAMED_LIMIT:
            self._rows.append(table_row(len(self._place_of), RecordedObject(name)))
            place = self._place_of[name] = len(self._place_of) + 1
        return place

    def of_polls(
        self,
        pids: npt.NDArray[np.uint32],
        waits: npt.NDArray[np.void],
        memory_of: Callable[[Pid], ProcessMemory | None],
    ) -> npt.NDArray[np.uint8]:
        """DEVICE for each poll() (fields syscall, args) with a device among its descriptors, PROCESS for that of a
        process alone; else UNKNOWN.

        The kernel side tells one descriptor, mostly. Others are read from the process when the wait is over. What is
        there by then may be something else, so it counts only if all of it can be a list of descriptors.
        """
        kinds = np.zeros(len(waits), np.uint8)
        chosen = np.flatnonzero(_IS_POLL[waits["syscall"]] & (waits["args"][:, 1] <= _POLLED_LIMIT))
        known: dict[tuple[int, int, int], FdKind] = {}
        for position in chosen[:_POLLS_LIMIT].tolist():
            pid, args = int(pids[position]), waits["args"][position]
            key = pid, int(args[0]), int(args[1])
            if key not in known:
                known[key] = self._polled(Pid(pid), memory_of(Pid(pid)), key[1], key[2])
            kinds[position] = known[key]
        return kinds

    def _polled(self, pid: Pid, memory: ProcessMemory | None, address: int, count: int) -> FdKind:
        if address >> _POLLED_BIT:
            data: bytes | None = struct.pack("<Q", address & _POLLED)
        else:
            data = memory.read(address, count * _POLLFD.size) if memory is not None and count else None
        if data is None:
            return FdKind.UNKNOWN
        entries = list(_POLLFD.iter_unpack(data))
        if any(not events or events & ~_POLL_EVENTS for _, events, _ in entries):
            return FdKind.UNKNOWN
        kinds = {self._kind(pid, fd) for fd, _, _ in entries if fd >= 0}
        if kinds == {FdKind.PROCESS}:
            return FdKind.PROCESS
        return FdKind.DEVICE if FdKind.DEVICE in kinds else FdKind.UNKNOWN

    def _seen(self, pid: int, fd: int) -> tuple[FdKind, str, int]:
        """Its kind, what it is of, and the number of that inode."""
        kind, name, inode = self._looked(pid, fd)
        if name is None:
            name = self._sockets.name(Pid(pid), inode)
            self._known[pid, fd] = self._known[pid, fd][0], kind, name, inode
        return kind, name, inode

    def _kind(self, pid: int, fd: int) -> FdKind:
        return self._looked(pid, fd)[0]

    def _looked(self, pid: int, fd: int) -> tuple[FdKind, str | None, int]:
        """The same; its name is None for a socket whose name nobody asked for: it costs more than its kind."""
        now = time.monotonic()
        since, kind, name, inode = self._known.get((pid, fd), (-_REMEMBERED_S, FdKind.UNKNOWN, "", 0))
        is_new = kind == FdKind.SOCKET and name == ""  # of a connection that was made since the last look
        if now - since >= (_NEW_S if is_new else _REMEMBERED_S):
            kind, name, inode = _look(pid, fd)
            if len(self._known) >= _REMEMBERED_COUNT:
                self._known.clear()
            self._known[pid, fd] = now, kind, name, inode
        return kind, name, inode


def _look(pid: int, fd: int) -> tuple[FdKind, str | None, int]:
    path = f"/proc/{living(Pid(pid))}/fd/{fd}"
    try:
        found = reader().stat(Pid(pid), path)
        kind = _kind(found.mode)
        if kind == FdKind.SOCKET:
            return kind, None, found.inode
        link = _link(pid, fd)
        if kind == FdKind.UNKNOWN and link.startswith(_PIDFDS):
            return FdKind.PROCESS, _process(pid, fd), found.inode
        if kind == FdKind.UNKNOWN:
            return FdKind.EVENT if link in _EVENTS else kind, "", found.inode
        return kind, link, found.inode
    except OSError:
        return FdKind.UNKNOWN, "", 0


def _process(pid: int, fd: int) -> str:
    """`process 4711`, by its number here; "": it has ended, or is not in sight."""
    found = _PIDFD.search(reader().read_file(Pid(pid), f"/proc/{living(Pid(pid))}/fdinfo/{fd}", _INFO_BYTES))
    return f"process {found[1].decode()}" if found else ""


def _is_eventfd(pid: Pid, fd: int) -> bool:
    try:
        return _link(pid, fd) == _EVENTFD
    except OSError:
        return False


def _link(pid: int, fd: int) -> str:
    return os.readlink(f"/proc/{living(Pid(pid))}/fd/{fd}")[:_NAME_LENGTH]


def _kind(mode: int) -> FdKind:
    if stat.S_ISFIFO(mode):
        return FdKind.PIPE
    if stat.S_ISSOCK(mode):
        return FdKind.SOCKET
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return FdKind.DEVICE
    return FdKind.FILE if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else FdKind.UNKNOWN
