"""Sockets as /proc and the kernel's socket diagnosis tell them: to whom one is connected, or where it listens."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bpfprof.known.services import LISTENING
from bpfprof.model.ids import Pid
from bpfprof.proc.living import living

# Tables of a network namespace, by the protocol that is said with an address. net/ipv4/tcp_ipv4.c, tcp4_seq_show().
_TABLES = {"tcp": "", "tcp6": "", "udp": "udp ", "udp6": "udp "}
_PROTOCOLS = {socket.IPPROTO_TCP: "", socket.IPPROTO_UDP: "udp "}
_UNCONNECTED = ("udp socket on ", f"{LISTENING}udp ")
# TCP_LISTEN, TCP_TIME_WAIT, TCP_ESTABLISHED, TCP_NEW_SYN_RECV: include/net/tcp_states.h
_LISTENS, _TIME_WAIT, _OPEN = 10, 6, (1, 3, 12)
_MOST_BYTES = 32 << 20  # of one table: 200,000 connections
_READ_EVERY_S, _REST = 0.1, 50  # a table is not read again for so long, nor for so many times as reading it took
_REMEMBERED, _NAMESPACES = 10_000, 64

# include/uapi/linux/netlink.h, sock_diag.h, unix_diag.h, inet_diag.h: struct nlmsghdr; unix_diag_req, unix_diag_msg;
# inet_diag_req_v2 and inet_diag_msg, both with their inet_diag_sockid; rtattr.
_ANY = 0xFFFFFFFF
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLM_F_DUMP = 4, 20, 1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER, _REQUEST, _ANSWER, _ATTRIBUTE = (struct.Struct(each) for each in ("=IHHII", "=BBHIIIII", "=BBBBIII", "=HH"))
_INET_REQUEST, _INET_ANSWER = struct.Struct("=BBBBI48x"), struct.Struct("!BBBBHH16s16s12x16x")
_INODE = struct.Struct("=I")  # after that
_INET_ANSWER_BYTES = _INET_ANSWER.size + _INODE.size
# A request for one socket: the ends as it has them itself, in place of the padding of _INET_REQUEST. Of struct
# inet_diag_msg, idiag_wqueue: what was sent, and has not come to the other end yet.
_ONE_REQUEST, _ENDS = struct.Struct("=BBBBI"), struct.Struct("!HH16s16s")
_UNSENT_AT, _UNSENT = 60, struct.Struct("=I")
_NO_COOKIE = struct.pack("=III", 0, _ANY, _ANY)
# INET_DIAG_INFO, and its bit; tcpi_data_segs_in and tcpi_data_segs_out of struct tcp_info, include/uapi/linux/tcp.h.
_INFO, _ASKS_FOR_INFO, _DATA_SEGMENTS_AT, _DATA_SEGMENTS = 2, 1 << 1, 152, struct.Struct("=II")
_SHOW_NAME, _SHOW_PEER = 1, 4
_NAME, _PEER = 0, 2
_TIMEOUT_S = 0.1

_Table = dict[int, Callable[[], str]]  # by inode; names are made when they are asked for, there may be 100,000


class SocketNames:
    """What sockets are, by their inodes: `10.0.0.5:5432`, `listening on 0.0.0.0:80`, `unix:/run/x.sock`, `udp socket on
    0.0.0.0:40123`."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str] = {}  # by network namespace and inode
        self._tables: dict[int, _Table] = {}  # of network namespaces, as they were read last
        self._connections: dict[int, bytes] = {}  # of TCP of our own one, by inode: struct inet_diag_msg
        self._listening_ports: set[int] = set()
        self._next_read_s: dict[int, float] = {}
        self._own_namespace = network_namespace(Pid(os.getpid()))
        self._diagnosis: socket.socket | None = None

    def name(self, pid: Pid, inode: int) -> str:
        """Of a socket of this process; "" while it is not known."""
        namespace = network_namespace(pid)
        if not namespace:
            return ""
        known = self._known.get((namespace, inode), "")
        if known:
            return known
        if namespace == self._own_namespace:
            found = self._unix_name(inode)
            if found is not None:
                return self._remember(namespace, inode, found) if found else "unix socket"
        if time.monotonic() >= self._next_read_s.get(namespace, 0.0) and inode not in self._tables.get(namespace, ()):
            self._read(pid, namespace)
        row = self._tables.get(namespace, {}).get(inode)
        found = row() if row else ""
        # One without a peer may get one.
        return self._remember(namespace, inode, found) if found and not found.startswith(_UNCONNECTED) else found

    def peer(self, pid: Pid, inode: int) -> int:
        """The inode of the other end of a Unix socket of this process; 0: not known."""
        if not inode or network_namespace(pid) != self._own_namespace:
            return 0
        return (self._ask(inode) or ("", 0))[1]

    def other_end(self, pid: Pid, inode: int) -> int:
        """The inode of the other end, on this machine, of a TCP connection of this process; 0: not known.

        Of a connection that nobody has accepted yet it is the socket that listens, if there is one of that port. While
        something is on its way nothing is known.
        """
        ends = self._ends(pid, inode)
        if ends is None:
            return 0
        family, port, peer_port, local, peer = ends
        own = self._ask_inet(family, (port, peer_port, local, peer))
        other = self._ask_inet(family, (peer_port, port, peer, local))
        if own is None or other is None or _unsent(own) or _unsent(other):
            return 0
        _, state, _, _, *found = _INET_ANSWER.unpack_from(other)
        # A listening socket of that port answers where there is no such connection.
        if tuple(found[:2]) != (peer_port, port) or state not in _OPEN:
            return 0
        if _inode_of(other):
            return _inode_of(other)
        rows = ((number, _INET_ANSWER.unpack_from(row)) for number, row in self._connections.items())
        listening = [number for number, row in rows if row[1] == _LISTENS and row[4] == peer_port]
        return listening[0] if len(listening) == 1 else 0  # of several with SO_REUSEPORT it is not known

    def waits_for_answer(self, pid: Pid, inode: int) -> bool:
        """Whether a TCP connection that this process made has sent something, and has never got anything."""
        ends = self._ends(pid, inode)
        if ends is None or ends[1] in self._listening_ports:
            return False
        found = self._ask_inet(ends[0], ends[1:], _ASKS_FOR_INFO)
        if found is None or _inode_of(found) != inode:
            return False
        for kind, value in _attributes(found, _INET_ANSWER_BYTES):
            if kind == _INFO and len(value) >= _DATA_SEGMENTS_AT + _DATA_SEGMENTS.size:
                received, sent = _DATA_SEGMENTS.unpack_from(value, _DATA_SEGMENTS_AT)
                return sent > 0 and not received
        return False

    def is_accepted(self, pid: Pid, inode: int) -> bool:
        """Whether it is a TCP connection of this process that another one made, or that is not known."""
        ends = self._ends(pid, inode)
        return ends is None or ends[1] in self._listening_ports

    def _ends(self, pid: Pid, inode: int) -> tuple[int, int, int, bytes, bytes] | None:
        """(family, port, peer's port, address, peer's) of a TCP connection of our own namespace; None: it is none."""
        namespace = network_namespace(pid)
        if namespace != self._own_namespace or not inode:
            return None
        ends = _ends_of(self._connections.get(inode))
        if ends is None and time.monotonic() >= self._next_read_s.get(namespace, 0.0):
            self._read(pid, namespace)
            ends = _ends_of(self._connections.get(inode))
        return ends

    def close(self) -> None:
        if self._diagnosis is not None:
            self._diagnosis.close()
            self._diagnosis = None

    def _remember(self, namespace: int, inode: int, name: str) -> str:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[namespace, inode] = name
        return name

    def _read(self, pid: Pid, namespace: int) -> None:
        begin_s = time.monotonic()
        found = self._told() if namespace == self._own_namespace else None
        if found is None:  # of others the kernel tells by their tables only
            found = {
                inode: row
                for table, protocol in _TABLES.items()
                for inode, row in _rows(f"/proc/{living(pid)}/net/{table}", protocol)
            }
        end_s = time.monotonic()
        if len(self._tables) >= _NAMESPACES:
            self._tables.clear()
            self._next_read_s.clear()
        self._tables[namespace] = found
        self._next_read_s[namespace] = end_s + max(_READ_EVERY_S, _REST * (end_s - begin_s))

    def _told(self) -> _Table | None:
        """Of our own network namespace by the kernel's socket diagnosis; None: it does not tell."""
        found: _Table = {}
        self._connections, self._listening_ports = {}, set()
        try:
            for protocol, said in _PROTOCOLS.items():
                for family in (socket.AF_INET, socket.AF_INET6):
                    for answer in self._dump(family, protocol):
                        found[_inode_of(answer)] = partial(_inet_name, answer, said)
                        if protocol == socket.IPPROTO_TCP:
                            self._connections[_inode_of(answer)] = answer
                            _, state, _, _, port, *_ = _INET_ANSWER.unpack_from(answer)
                            if state == _LISTENS:
                                self._listening_ports.add(port)
        except (OSError, struct.error):
            self.close()
            return None
        return found

    def data_segments(self) -> dict[int, tuple[int, int]]:
        """By inode of each TCP socket of our own network namespace: how many with data it received, and sent."""
        found = {}
        try:
            for family in (socket.AF_INET, socket.AF_INET6):
                for answer in self._dump(family, socket.IPPROTO_TCP, _ASKS_FOR_INFO):
                    for kind, value in _attributes(answer, _INET_ANSWER_BYTES):
                        if kind == _INFO and len(value) >= _DATA_SEGMENTS_AT + _DATA_SEGMENTS.size:
                            found[_inode_of(answer)] = _DATA_SEGMENTS.unpack_from(value, _DATA_SEGMENTS_AT)
        except (OSError, struct.error):
            self.close()
        return found

    def _dump(self, family: int, protocol: int, extensions: int = 0) -> Iterator[bytes]:
        states = _ANY & ~(1 << _TIME_WAIT)
        request = _INET_REQUEST.pack(family, protocol, extensions, 0, states)
        self._send(request, _NLM_F_REQUEST | _NLM_F_DUMP)
        read_bytes = 0
        while read_bytes < _MOST_BYTES:
            messages = self._socket().recv(1 << 18)
            read_bytes += len(messages)
            place = 0
            while place + _HEADER.size <= len(messages):
                size, kind, *_ = _HEADER.unpack_from(messages, place)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR or size < _HEADER.size:
                    raise OSError("the kernel does not tell of sockets")
                yield messages[place + _HEADER.size : place + size]
                place += size + 3 & ~3
        self.close()  # the rest is not read

    def _socket(self) -> socket.socket:
        if self._diagnosis is None:
            self._diagnosis = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
            )
            self._diagnosis.settimeout(_TIMEOUT_S)
        return self._diagnosis

    def _send(self, request: bytes, flags: int) -> None:
        header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, flags, 1, 0)
        self._socket().send(header + request)

    def _unix_name(self, inode: int) -> str | None:
        """Its own name, or that of the socket it is connected to, "" without one; None: it is no Unix socket."""
        found = self._ask(inode)
        if found is None:
            return None
        name, peer = found
        if not name and peer:
            name = (self._ask(peer) or ("", 0))[0]
        return f"unix:{name}" if name else ""

    def _ask(self, inode: int) -> tuple[str, int] | None:
        """(name, inode of the peer)"""
        answer = self._one(_REQUEST.pack(socket.AF_UNIX, 0, 0, _ANY, inode, _SHOW_NAME | _SHOW_PEER, _ANY, _ANY))
        return None if answer is None else _name_and_peer(answer)

    def _ask_inet(self, family: int, ends: tuple[int, int, bytes, bytes], extensions: int = 0) -> bytes | None:
        """struct inet_diag_msg and what follows, of the TCP socket with these ends: ports, addresses, its own first."""
        head = _ONE_REQUEST.pack(family, socket.IPPROTO_TCP, extensions, 0, _ANY)
        answer = self._one(head + _ENDS.pack(*ends) + _NO_COOKIE)
        return answer if answer is not None and len(answer) >= _INET_ANSWER_BYTES else None

    def _one(self, request: bytes) -> bytes | None:
        """What the kernel tells of one socket; None: there is no such one."""
        try:
            self._send(request, _NLM_F_REQUEST)
            answer = self._socket().recv(1 << 16)
        except OSError:
            self.close()
            return None
        size, kind, *_ = _HEADER.unpack_from(answer)
        return answer[_HEADER.size : size] if kind == _SOCK_DIAG_BY_FAMILY else None


def _ends_of(answer: bytes | None) -> tuple[int, int, int, bytes, bytes] | None:
    if answer is None:
        return None
    family, state, _, _, port, peer_port, local, peer = _INET_ANSWER.unpack_from(answer)
    return (family, port, peer_port, local, peer) if peer_port and state != _LISTENS else None


def _unsent(answer: bytes) -> int:
    return int(_UNSENT.unpack_from(answer, _UNSENT_AT)[0])


def _attributes(answer: bytes, place: int) -> Iterator[tuple[int, bytes]]:
    """(kind, value) of those from this place on."""
    while place + _ATTRIBUTE.size <= len(answer):
        size, kind = _ATTRIBUTE.unpack_from(answer, place)
        yield kind, answer[place + _ATTRIBUTE.size : place + size]
        place += max(_ATTRIBUTE.size, size + 3 & ~3)


def _name_and_peer(answer: bytes) -> tuple[str, int]:
    name, peer = "", 0
    for kind, value in _attributes(answer, _ANSWER.size):
        if kind == _NAME:
            # An abstract name begins with a zero, unix(7).
            name = value.decode("utf-8", "replace").rstrip("\0").replace("\0", "@", 1)
        elif kind == _PEER and len(value) == 4:
            (peer,) = struct.unpack("=I", value)
    return name, peer


def network_namespace(pid: Pid) -> int:
    """A number of its own; 0: the process is gone."""
    try:
        return os.stat(f"/proc/{living(pid)}/ns/net").st_ino
    except OSError:
        return 0


def _rows(path: str, protocol: str) -> Iterator[tuple[int, Callable[[], str]]]:
    """(inode, name) of the sockets of a table."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for line in file.readlines(_MOST_BYTES)[1:]:
            words = line.decode("ascii", "replace").split()
            if len(words) < 10 or not words[9].isdigit():
                continue
            yield int(words[9]), partial(_row_name, words[1], words[2], words[3] == f"{_LISTENS:02X}", protocol)


def _row_name(local: str, peer: str, listens: bool, protocol: str) -> str:
    return _name(address_of(local), address_of(peer), listens, protocol)


def _inode_of(answer: bytes) -> int:
    return int(_INODE.unpack_from(answer, _INET_ANSWER.size)[0])


def _inet_name(answer: bytes, protocol: str) -> str:
    family, state, _, _, port, peer_port, local, peer = _INET_ANSWER.unpack_from(answer)
    size = 4 if family == socket.AF_INET else 16
    ends = _address_text(local[:size], port), _address_text(peer[:size], peer_port)
    return _name(*ends, state == _LISTENS, protocol)


def _name(local: str, peer: str, listens: bool, protocol: str) -> str:
    if listens and not protocol:
        return LISTENING + local if local else ""
    if peer and not peer.endswith(":0"):
        return protocol + peer
    return _unconnected_name(local) if protocol else ""


def _unconnected_name(local: str) -> str:
    """Of a socket of UDP that is no one's in particular: one that was given any port asks, others serve."""
    port = int(local.rpartition(":")[2] or 0)
    return (_UNCONNECTED[port not in _any_ports()] + local) if port else ""


@functools.cache
def _any_ports() -> range:
    """The ports that the kernel gives, of our own network namespace: ip(7)."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return range(int(first), int(last) + 1)
    except (OSError, ValueError):
        return range(32768, 61000)


def address_of(text: str) -> str:
    """`0100007F:1F90` as 127.0.0.1:8080, words in the order of the machine's bytes; "" for what is none."""
    words, _, port = text.partition(":")
    if len(words) not in (8, 32):
        return ""
    try:
        parts = [int(words[place : place + 8], 16) for place in range(0, len(words), 8)]
        return _address_text(struct.pack(f"={len(parts)}I", *parts), int(port, 16))
    except (ValueError, struct.error):
        return ""


def _address_text(packed: bytes, port: int) -> str:
    address = ipaddress.ip_address(packed)
    if isinstance(address, ipaddress.IPv6Address):
        return f"{address.ipv4_mapped}:{port}" if address.ipv4_mapped else f"[{address}]:{port}"
    return f"{address}:{port}"
