"""What kind of file a descriptor of a target is: tells a read of a pipe from a read of a socket."""

from __future__ import annotations

import os
import stat
import struct
import time
from collections.abc import Callable

import numpy as np

from bpfprof import array_types as npt
from bpfprof.capture.numbers import by_distinct
from bpfprof.model.ids import Pid
from bpfprof.model.samples import FD_CALLS, FdKind
from bpfprof.model.syscalls import syscall_numbers
from bpfprof.proc.memory import ProcessMemory

# By number of the call; -1 (in no call) is the last element.
_TAKES_DESCRIPTOR = np.zeros(1 << 16, np.bool_)
_TAKES_DESCRIPTOR[FD_CALLS] = True
_IS_POLL = np.zeros(1 << 16, np.bool_)
_IS_POLL[sorted(syscall_numbers("poll", "ppoll"))] = True
_POLLFD = struct.Struct("<ihH")  # struct pollfd: fd, events, revents; include/uapi/asm-generic/poll.h
_POLL_EVENTS = 0x3FFF
_POLLED_LIMIT, _POLLS_LIMIT = 64, 1000  # descriptors of one call; calls looked at together
_REMEMBERED_S = 1.0  # a descriptor can be closed and given again
_REMEMBERED_COUNT = 10_000


class DescriptorKinds:
    """Looked up when a wait is drained, so a descriptor that was closed meanwhile is unknown."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[float, FdKind]] = {}

    def of_calls(
        self, pids: npt.NDArray[np.uint32], calls: npt.NDArray[np.int16], first: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.uint8]:
        """A FdKind for each call with this first argument; UNKNOWN for calls that take no descriptor."""
        kinds = np.zeros(len(calls), np.uint8)
        chosen = np.flatnonzero(_TAKES_DESCRIPTOR[calls])
        keys = pids[chosen].astype(np.uint64) << np.uint64(32) | first[chosen] & np.uint64(0xFFFFFFFF)
        kinds[chosen] = by_distinct(keys, lambda key: self._kind(key >> 32, key & 0xFFFFFFFF))
        return kinds

    def of_polls(
        self,
        pids: npt.NDArray[np.uint32],
        waits: npt.NDArray[np.void],
        memory_of: Callable[[Pid], ProcessMemory | None],
    ) -> npt.NDArray[np.uint8]:
        """DEVICE for each poll() (fields syscall, args) with a device among its descriptors; else UNKNOWN.

        They are read from the process when the wait is over. What is there by then may be something else, so it counts
        only if all of it can be a list of descriptors.
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
        data = memory.read(address, count * _POLLFD.size) if memory is not None and count else None
        if data is None:
            return FdKind.UNKNOWN
        entries = list(_POLLFD.iter_unpack(data))
        if any(not events or events & ~_POLL_EVENTS for _, events, _ in entries):
            return FdKind.UNKNOWN
        kinds = {self._kind(pid, fd) for fd, _, _ in entries if fd >= 0}
        return FdKind.DEVICE if FdKind.DEVICE in kinds else FdKind.UNKNOWN

    def _kind(self, pid: int, fd: int) -> FdKind:
        now = time.monotonic()
        since, kind = self._known.get((pid, fd), (-_REMEMBERED_S, FdKind.UNKNOWN))
        if now - since >= _REMEMBERED_S:
            kind = _look(pid, fd)
            if len(self._known) >= _REMEMBERED_COUNT:
                self._known.clear()
            self._known[pid, fd] = now, kind
        return kind


def _look(pid: int, fd: int) -> FdKind:
    try:
        mode = os.stat(f"/proc/{pid}/fd/{fd}").st_mode
    except OSError:
        return FdKind.UNKNOWN
    if stat.S_ISFIFO(mode):
        return FdKind.PIPE
    if stat.S_ISSOCK(mode):
        return FdKind.SOCKET
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return FdKind.DEVICE
    return FdKind.FILE if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else FdKind.UNKNOWN
