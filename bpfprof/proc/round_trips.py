"""TCP connections of processes -> how long the shortest round trip on each took, as the kernel measured it."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterable
from itertools import islice

from bpfprof.model.ids import Pid
from bpfprof.proc.sockets import network_namespace

_PIDFD_GETFD = 438  # asm-generic/unistd.h: the same on all architectures
# struct tcp_info, <linux/tcp.h>: tcpi_bytes_acked and tcpi_bytes_received, and tcpi_min_rtt (since Linux 4.6) of some
# minutes (net.ipv4.tcp_min_rtt_wlen). tcpi_rtt is also that of a program which had to wait for its CPU.
_BYTES, _BYTES_AT, _LEAST, _LEAST_AT, _INFO_BYTES = struct.Struct("=QQ"), 120, struct.Struct("=I"), 148, 152
_MOST_PROCESSES, _MOST_DESCRIPTORS, _MOST_CONNECTIONS = 64, 1024, 64
_MOST_KEPT = 1024  # processes that were looked at
_EVERY_S, _REST = 2.0, 200  # the second times what a look took: they cost at most 0.5% of a CPU
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class RoundTrips:
    """Of processes that are looked at now and then: what was seen of each last.

    found: pid -> the other end of each connection -> [microseconds, bytes that it carried]. is_apart: pid -> whether
    its network namespace is another one than ours.
    """

    def __init__(self) -> None:
        self.found: dict[str, dict[str, list[int]]] = {}
        self.is_apart: dict[str, bool] = {}
        self._next_s = 0.0

    def look(self, pids: Iterable[Pid]) -> None:
        """Unless it was looked at just now."""
        begin_s = time.monotonic()
        if begin_s < self._next_s:
            return
        own = network_namespace(Pid(os.getpid()))
        for pid in islice(pids, _MOST_PROCESSES):
            if (connections := connections_of(pid)) and (str(pid) in self.found or len(self.found) < _MOST_KEPT):
                self.found[str(pid)], self.is_apart[str(pid)] = connections, network_namespace(pid) not in (own, 0)
        end_s = time.monotonic()
        self._next_s = end_s + max(_EVERY_S, _REST * (end_s - begin_s))


def connections_of(pid: Pid) -> dict[str, list[int]]:
    """The other end of each TCP connection of a process -> [least microseconds of a round trip, bytes].

    Nothing where that may not be asked, or the process is gone. Its sockets are asked by copies of its descriptors,
    which are there for microseconds and change nothing.
    """
    found: dict[str, list[int]] = {}
    try:
        names, process = os.listdir(f"/proc/{pid}/fd")[:_MOST_DESCRIPTORS], os.pidfd_open(pid)
    except OSError:
        return found
    try:
        for name in names:
            if _is_socket(pid, name):
                found |= _connection(process, int(name))
    finally:
        os.close(process)
    return dict(sorted(found.items(), key=lambda item: -item[1][1])[:_MOST_CONNECTIONS])


def _is_socket(pid: Pid, name: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    except OSError:
        return False


def _connection(process: int, number: int) -> dict[str, list[int]]:
    """Of one socket, if it is of TCP and connected."""
    copy = ctypes.CDLL(None).syscall(_PIDFD_GETFD, process, number, 0)
    if copy < 0:
        return {}
    try:
        with socket.socket(fileno=copy) as one:  # with no timeout: it stays as the program has set it
            copy = -1
            if one.family not in _FAMILIES or one.type != socket.SOCK_STREAM or one.proto != socket.IPPROTO_TCP:
                return {}
            host, port, *_ = one.getpeername()
            told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except (OSError, ValueError):
        return {}
    finally:
        if copy >= 0:
            os.close(copy)
    if len(told) < _INFO_BYTES:
        return {}
    other_end = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return {other_end: [*_LEAST.unpack_from(told, _LEAST_AT), sum(_BYTES.unpack_from(told, _BYTES_AT))]}
