"""What a thread polls, and who reads a pipe: descriptors of a process that sleeps in, numbers of others out."""

from __future__ import annotations

import os
import re
import struct

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


def readers_of_pipe(pid: Pid, fd: int) -> tuple[bool, list[Pid]]:
    """(whether a process could read what it writes into this pipe, which others of its family could)"""
    try:
        pipe = reader().stat(pid, f"/proc/{living(pid)}/fd/{fd}").inode
    except OSError:
        return False, []
    return _reads(pid, pipe), [relative for relative in tasks.relatives(pid) if _reads(relative, pipe)]


def holders_of(pid: Pid, name: str) -> list[Pid]:
    """Which other processes of its family have this open, as links in /proc/PID/fd name it; [] if it does itself."""
    return [] if _has_open(pid, name) else [relative for relative in tasks.relatives(pid) if _has_open(relative, name)]


def _has_open(pid: Pid, name: str) -> bool:
    folder = f"/proc/{living(pid)}/fd"
    try:
        return any(os.readlink(f"{folder}/{fd}") == name for fd in os.listdir(folder)[:_DESCRIPTORS_LIMIT])
    except OSError:
        return False


def _reads(pid: Pid, pipe: int) -> bool:
    try:
        found = os.listdir(f"/proc/{living(pid)}/fd")[:_DESCRIPTORS_LIMIT]
    except OSError:
        return False
    return any(_is_pipe(pid, fd, pipe) and _is_for_reading(pid, fd) for fd in found)


def _is_pipe(pid: Pid, fd: str, pipe: int) -> bool:
    try:
        return os.readlink(f"/proc/{living(pid)}/fd/{fd}") == f"pipe:[{pipe}]"
    except OSError:
        return False


def _is_for_reading(pid: Pid, fd: str) -> bool:
    try:
        flags = _FLAGS.search(reader().read_file(pid, f"/proc/{living(pid)}/fdinfo/{fd}", _INFO_BYTES))
    except OSError:
        return False
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_WRONLY
