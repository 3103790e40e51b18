"""What a thread polls, and who reads a pipe: descriptors of a process that sleeps in, numbers of others out."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import time

from bpfprof.model.ids import Pid
from bpfprof.proc import tasks
from bpfprof.proc.living import living
from bpfprof.proc.memory import Memory
from bpfprof.proc.reader import reader
from bpfprof.proc.tasks import BlockedSyscall

_POLLFD = struct.Struct("<iHH")  # fd, events, revents: include/uapi/asm-generic/poll.h
_POLLED_LIMIT, _SELECTED_LIMIT = 64, 1024  # descriptors; the latter is FD_SETSIZE
_INFO_BYTES = 64 << 10
_EPOLLED = re.compile(rb"^tfd:\s*(\d+)", re.MULTILINE)  # ep_show_fdinfo(), fs/eventpoll.c
_FLAGS = re.compile(rb"^flags:\s*([0-7]+)", re.MULTILINE)  # proc(5)
_DESCRIPTORS_LIMIT = 1024  # of a process
_OPEN_S, _OPEN_LOOK_S, _HAVING_LIMIT = 1.0, 0.1, 64  # of CPU time; descriptors of one end that are looked at


def polled_descriptors(pid: Pid, name: str, call: BlockedSyscall, memory: Memory | None) -> list[int]:
    """Those that a call of poll(), select() or epoll_wait() waits for; [] where they are many, or not known."""
    first, second = call.args[:2]
    if name.startswith("epoll"):
        try:
            found = reader().read_file(pid, f"/proc/{living(pid)}/fdinfo/{first & 0xFFFFFFFF}", _INFO_BYTES)
        except OSError:
            return []
        return [int(number) for number in _EPOLLED.findall(found)[: _POLLED_LIMIT + 1]]
    if memory is None:
        return []
    if "poll" in name:
        data = memory.read(first, second * _POLLFD.size) if 0 < second <= _POLLED_LIMIT else None
        return [fd for fd, _, _ in _POLLFD.iter_unpack(data or b"") if fd >= 0]
    chosen = 0
    if 0 < first <= _SELECTED_LIMIT:
        sets = (memory.read(address, -(-first // 64) * 8) for address in call.args[1:4] if address)
        for data in sets:
            chosen |= int.from_bytes(data or b"", "little")
    return [fd for fd in range(first) if chosen >> fd & 1] if chosen else []


def others_of_pipe(pid: Pid, fd: int) -> list[Pid]:
    """Which other processes of its family have the other end of this pipe."""
    found = _pipe(pid, fd)
    return [] if found is None else [relative for relative in tasks.relatives(pid) if _has_end(relative, *found)]


class OpenEnds:
    """Who has pipes and sockets open, of all processes there are; looked for once, and again when that was a second
    ago."""

    def __init__(self) -> None:
        self._of: dict[str, list[tuple[Pid, str]]] | None = None  # (process, descriptor), by what /proc/PID/fd says
        self._untold: set[Pid] = set()  # whose descriptors are not told
        self._again_s = 0.0

    def expire(self) -> None:
        """The next look is a new one."""
        self._again_s = 0.0

    def of_pipe(self, pid: Pid, fd: int) -> set[Pid] | None:
        """The processes that have the other end of this pipe; None: it is not known."""
        found = _pipe(pid, fd)
        having = self._having(pid, f"pipe:[{found[0]}]") if found is not None else None
        if found is None or having is None:
            return None
        accesses = [(each, _access(each, number)) for each, number in having]
        other = os.O_WRONLY if found[1] else os.O_RDONLY
        is_known = all(access is not None for _, access in accesses)
        return {each for each, access in accesses if access != other} if is_known else None

    def of_socket(self, pid: Pid, inode: int) -> set[Pid] | None:
        """The processes that have the socket with this inode, which one of this process waits for; None: not known."""
        having = self._having(pid, f"socket:[{inode}]") if inode else None
        return {each for each, _ in having} if having else None

    def _having(self, pid: Pid, name: str) -> list[tuple[Pid, str]] | None:
        if time.monotonic() >= self._again_s:
            self._of = self._look()
            self._again_s = time.monotonic() + _OPEN_S
        if self._of is None or (self._untold and self._untold & {pid, *tasks.relatives(pid)}):
            return None
        found = self._of.get(name, [])
        is_true = len(found) <= _HAVING_LIMIT and all(_link(each, number) == name for each, number in found)
        return found if is_true else None

    def _look(self) -> dict[str, list[tuple[Pid, str]]] | None:
        """None: there was no time for all."""
        until_s = time.thread_time() + _OPEN_LOOK_S
        self._untold = set()
        found: dict[str, list[tuple[Pid, str]]] = {}
        for pid in tasks.list_processes():
            if time.thread_time() > until_s:
                return None
            folder = f"/proc/{living(pid)}/fd"
            try:
                for number in os.listdir(folder):
                    with contextlib.suppress(FileNotFoundError):
                        if (name := os.readlink(f"{folder}/{number}")).startswith(("pipe:", "socket:")):
                            found.setdefault(name, []).append((pid, number))
            except FileNotFoundError:  # it has ended
                continue
            except OSError:
                self._untold.add(pid)
        return found


OPEN_ENDS = OpenEnds()


def reads_pipe(pid: Pid, fd: int) -> bool:
    """Whether this end of a pipe is for reading alone."""
    return _access(pid, str(fd)) == os.O_RDONLY


def holders_of(pid: Pid, name: str) -> list[Pid]:
    """Which other processes of its family have this open, as links in /proc/PID/fd name it; [] if it does itself."""
    return [] if _has_open(pid, name) else [relative for relative in tasks.relatives(pid) if _has_open(relative, name)]


def _has_open(pid: Pid, name: str) -> bool:
    folder = f"/proc/{living(pid)}/fd"
    try:
        return any(os.readlink(f"{folder}/{fd}") == name for fd in os.listdir(folder)[:_DESCRIPTORS_LIMIT])
    except OSError:
        return False


def _pipe(pid: Pid, fd: int) -> tuple[int, bool] | None:
    """(its number, whether this end is for writing)"""
    try:
        pipe = reader().stat(pid, f"/proc/{living(pid)}/fd/{fd}").inode
    except OSError:
        return None
    access = _access(pid, str(fd))
    return None if access is None else (pipe, access != os.O_RDONLY)


def _has_end(pid: Pid, pipe: int, for_reading: bool) -> bool:
    """Whether a process has the end of a pipe that is for reading, or the one for writing."""
    try:
        found = os.listdir(f"/proc/{living(pid)}/fd")[:_DESCRIPTORS_LIMIT]
    except OSError:
        return False
    accesses = (_access(pid, fd) for fd in found if _is_pipe(pid, fd, pipe))
    return any(access not in (None, os.O_WRONLY if for_reading else os.O_RDONLY) for access in accesses)


def _is_pipe(pid: Pid, fd: str, pipe: int) -> bool:
    return _link(pid, fd) == f"pipe:[{pipe}]"


def _link(pid: Pid, fd: str) -> str:
    try:
        return os.readlink(f"/proc/{living(pid)}/fd/{fd}")
    except OSError:
        return ""


def _access(pid: Pid, fd: str) -> int | None:
    """O_RDONLY, O_WRONLY or O_RDWR; None: it is not known."""
    try:
        flags = _FLAGS.search(reader().read_file(pid, f"/proc/{living(pid)}/fdinfo/{fd}", _INFO_BYTES))
    except OSError:
        return None
    return int(flags[1], 8) & os.O_ACCMODE if flags is not None else None
