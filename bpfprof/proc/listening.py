"""Who connects to whom, by the tables of /proc: which processes listen, and which connections others made to them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable

from bpfprof.dataclass import dataclass
from bpfprof.model.ids import Pid
from bpfprof.proc.living import living
from bpfprof.proc.sockets import SocketNames, address_of, network_namespace

_MOST_BYTES = 32 << 20  # of one table: 200,000 connections
_INODE = re.compile(r"socket:\[(\d+)\]")
# net/ipv4/tcp_ipv4.c, tcp4_seq_show(): port, peer, state, ..., the inode; net/unix/af_unix.c, unix_seq_show(): flags
# 00010000 (__SO_ACCEPTCON), type, state, the inode.
_TCP = re.compile(rb"^\s*\d+: \w+:(\w{4}) (\w+:\w{4}) (\w\w) (?:\S+\s+){5}(\d+)", re.MULTILINE)
_UNIX = re.compile(rb"^\S+ \S+ \S+ 00010000 \S+ \S+ +(\d+)", re.MULTILINE)
_LISTENS = b"0A"  # TCP_LISTEN


@dataclass(frozen=True)
class _Namespace:
    """Of the network: inodes of its sockets that listen, and the other ends of connections that those asked for."""

    listening: frozenset[int]
    clients: frozenset[str]


class Listening:
    """As it was when a process of each network namespace was first asked for."""

    def __init__(self) -> None:
        self._namespaces: dict[int, _Namespace | None] = {}
        self._segments: dict[int, tuple[int, int]] | None = None

    def listens(self, pid: Pid) -> bool | None:
        """Whether a process has a socket that listens; None: that is not known."""
        namespace = self._namespace_of(pid)
        try:
            return None if namespace is None else bool(_sockets_of(pid) & namespace.listening)
        except OSError:
            return None

    def where_known(self, pids: Iterable[Pid]) -> dict[str, bool]:
        """The same of each of these that it is known of."""
        found = {str(pid): self.listens(pid) for pid in pids}
        return {pid: listens for pid, listens in found.items() if listens is not None}

    def asks(self, pid: Pid) -> bool:
        """Whether a connection of it sent about as often as it received, as one does that asks for what it gets.

        Only of processes in our own network namespace.
        """
        if self._segments is None:
            names = SocketNames()
            self._segments = names.data_segments()
            names.close()
        try:
            found = [self._segments[inode] for inode in _sockets_of(pid) & self._segments.keys()]
        except OSError:
            return False
        return any(received <= 2 * sent for received, sent in found if received)

    def clients(self, pid: Pid) -> frozenset[str]:
        """`10.0.0.9:51234` of each connection in its namespace that the other end asked for."""
        namespace = self._namespace_of(pid)
        return namespace.clients if namespace else frozenset()

    def _namespace_of(self, pid: Pid) -> _Namespace | None:
        number = network_namespace(pid)
        if number not in self._namespaces:
            try:
                self._namespaces[number] = _read_namespace(pid) if number else None
            except OSError:
                return None
        return self._namespaces[number]


def _read_namespace(pid: Pid) -> _Namespace:
    pid = living(pid)
    rows = [row for table in ("tcp", "tcp6") for row in _TCP.findall(_read(f"/proc/{pid}/net/{table}"))]
    ports = {port for port, _, state, _ in rows if state == _LISTENS}
    inodes = [inode for _, _, state, inode in rows if state == _LISTENS]
    inodes += _UNIX.findall(_read(f"/proc/{pid}/net/unix"))
    clients = (address_of(peer.decode()) for port, peer, state, _ in rows if port in ports and state != _LISTENS)
    return _Namespace(frozenset(map(int, inodes)), frozenset(clients))


def _sockets_of(pid: Pid) -> set[int]:
    found = set()
    folder = f"/proc/{living(pid)}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # closed meanwhile
            socket = _INODE.fullmatch(os.readlink(f"{folder}/{name}"))
            if socket:
                found.add(int(socket[1]))
    return found


def _read(path: str) -> bytes:
    if not os.path.exists(path):  # a kernel without IPv6
        return b""
    with open(path, "rb") as file:
        return file.read(_MOST_BYTES)
