"""Reads for bpfprof what may never answer: requests on a socket in, bytes in shared memory and descriptors out.

A read of another process's memory, or of a file, waits without end where a FUSE or NFS server is behind it, and then no
signal ends who reads. So this process does it, which can be left behind. It is run as a file: it imports nothing of
bpfprof. The first message says what it keeps of its privileges: it reads, and can do nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import socket
import stat
import struct
import sys
import time
from typing import Any

WINDOW_BYTES = 4 << 20
EACH_LIMIT, EACH_LIMIT_BYTES = 1024, 2048  # of what READ_EACH reads: the window has room for it
REQUEST = struct.Struct("<IIiIQQ")  # number of the request, what to do, descriptor or pid, flags, address, size
# number of the request, errno, result, nanoseconds slept; of what was opened: mode, device, inode, and its file system;
# of memory instead of that the descriptor by which it is known here
ANSWER = struct.Struct("<IiqqQQQQ")
READ_MEMORY, READ_EACH, READ_PAGES, OPEN_FILE, OPEN_PATH, READ_ON, CLOSE, STAT, READ_FILE = range(9)
READY = struct.Struct("<q")  # time.monotonic_ns()
REQUEST_BYTES = 64 << 10
NOFOLLOW = 1  # a flag of OPEN_FILE
CONFINE = struct.Struct("<Q")  # capabilities; a seccomp filter follows, or nothing
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2  # include/uapi/linux/prctl.h, seccomp.h
_CAPABILITY_VERSION_3 = 0x20080522  # include/uapi/linux/capability.h
_PASSED_BYTES = socket.CMSG_SPACE(4)
_Done = tuple[int, Any, int, int]  # result, stat_result or None, file system or descriptor, descriptor to send or -1
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_SYSCALL_OPENAT2, _RESOLVE_IN_ROOT = 437, 0x10  # openat2(2), since Linux 5.6
_EIO = 5


class _Server:
    def __init__(self, connection: socket.socket, window: mmap.mmap) -> None:
        self._connection, self._window = connection, memoryview(window)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.process_vm_readv.restype = ctypes.c_ssize_t
        self._scheduler = -1  # without CONFIG_SCHED_INFO
        with contextlib.suppress(OSError):
            self._scheduler = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._window_address = ctypes.addressof(ctypes.c_char.from_buffer(window))

    def confine(self) -> None:
        """By the first message; what of it this kernel does not do, or another filter forbids, is left out."""
        message = self._connection.recv(REQUEST_BYTES)
        (kept,) = CONFINE.unpack_from(message)
        code = message[CONFINE.size :]
        header, held = struct.pack("Ii", _CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
        self._libc.capget(header, held)
        _, low, _, _, high, _ = struct.unpack("6I", held)  # effective, permitted and inheritable, twice
        low, high = low & kept, high & kept >> 32
        self._libc.capset(header, struct.pack("6I", low, low, 0, high, high, 0))
        self._libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if code:
            lines = ctypes.create_string_buffer(code, len(code))
            program = struct.pack("H6xQ", len(code) // 8, ctypes.addressof(lines))
            self._libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, program, 0, 0)

    def serve(self) -> None:
        """Until the other end is closed. The first message sent says since when it is ready."""
        self._connection.sendmsg([READY.pack(time.monotonic_ns())])
        while True:
            message, passed, _, _ = self._connection.recvmsg(REQUEST_BYTES, _PASSED_BYTES)
            if not message:
                return
            number, action, fd, flags, address, size = REQUEST.unpack_from(message)
            root = struct.unpack("i", passed[0][2][:4])[0] if passed else -1
            switches, begin_ns = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw, self._asleep_ns()
            error, done = 0, (0, None, 0, -1)
            try:
                done = self._do(action, fd, flags, address, size, message[REQUEST.size :], root)
            except OSError as failure:
                error = failure.errno or _EIO
            except (OverflowError, ValueError):
                error = _EIO
            # It had to wait, and not only for a CPU.
            slept = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw != switches
            slept_ns = max(0, self._asleep_ns() - begin_ns) if slept else 0
            result, status, file_system, sent = done
            told = (status.st_mode, status.st_dev, status.st_ino) if status else (0, 0, 0)
            answer = [ANSWER.pack(number, error, result, slept_ns, *told, file_system)]
            if sent >= 0:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", sent))]
                self._connection.sendmsg(answer, rights)
            else:
                self._connection.sendmsg(answer)
            if root >= 0 and action not in (READ_MEMORY, READ_EACH):
                os.close(root)

    def _asleep_ns(self) -> int:
        """Since some time or other: when it neither had a CPU nor wanted for one."""
        wanted_ns = 0
        with contextlib.suppress(OSError, ValueError, IndexError):
            os.preadv(self._scheduler, [text := bytearray(128)], 0)
            wanted_ns = int(text.split()[1])
        return time.monotonic_ns() - time.thread_time_ns() - wanted_ns

    def _do(self, action: int, fd: int, flags: int, address: int, size: int, text: bytes, passed: int) -> _Done:
        if action == READ_MEMORY:
            # A read that meets an unmapped page returns what came before it: mem_rw(), fs/proc/base.c (Linux 6.1).
            memory = passed if passed >= 0 else fd
            return os.preadv(memory, [self._window[:size]], address), None, memory, -1
        if action == READ_EACH:
            memory = passed if passed >= 0 else fd
            return self._read_each(memory, size, struct.unpack(f"{len(text) // 8}Q", text)), None, memory, -1
        if action == READ_PAGES:
            return self._read_pages(fd, text), None, 0, -1
        if action == OPEN_FILE:
            return self._open_file(text, flags, passed)
        if action == OPEN_PATH:
            opened = os.open(text, size | os.O_CLOEXEC)
            return opened, os.fstat(opened), 0, opened
        if action == READ_ON:
            return os.readv(fd, [self._window[:size]]), None, 0, -1
        if action == CLOSE:
            os.close(fd)
            return 0, None, 0, -1
        if action == STAT:
            return 0, os.stat(text), 0, -1
        return self._read_file(text, size), None, 0, -1

    def _read_file(self, path: bytes, size: int) -> int:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < size and (count := os.readv(file, [self._window[done:size]])):
                done += count
            return done
        finally:
            os.close(file)

    def _open_file(self, path: bytes, flags: int, root: int) -> _Done:
        """Only a regular file: merely to open a FIFO or a device can have effects. It stays open here, too."""
        how = os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if flags & NOFOLLOW else 0)
        found = self._open_inside(root, path, how) if root >= 0 else os.open(path, how)
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise OSError(_EIO, "not a regular file")
            opened = os.open(f"/proc/self/fd/{found}", _READ)
        finally:
            os.close(found)
        told = (ctypes.c_long * 64)()
        if self._libc.fstatfs(opened, told):
            told[0] = 0
        return opened, os.fstat(opened), told[0], opened

    def _open_inside(self, root: int, path: bytes, flags: int) -> int:
        """Symbolic links do not lead out of `root`."""
        how = struct.pack("QQQ", flags, 0, _RESOLVE_IN_ROOT)
        found = self._libc.syscall(_SYSCALL_OPENAT2, root, path, how, len(how))
        if found < 0:
            raise OSError(ctypes.get_errno(), "openat2")
        return int(found)

    def _read_each(self, memory: int, size: int, addresses: tuple[int, ...]) -> int:
        """`size` bytes of each side by side, then for each a byte that is 1 if all of them could be read."""
        are_whole = bytearray(len(addresses))
        for at, address in enumerate(addresses):
            with contextlib.suppress(OSError, OverflowError):
                are_whole[at] = os.preadv(memory, [self._window[at * size : (at + 1) * size]], address) == size
        end = len(addresses) * size
        self._window[end : end + len(addresses)] = are_whole
        return end + len(addresses)

    def _read_pages(self, pid: int, remote: bytes) -> int:
        """Pages, an iovec each, up to the first that cannot be read: process_vm_rw_core() (Linux 6.1)."""
        local = struct.pack("QQ", self._window_address, WINDOW_BYTES)
        count = ctypes.c_ulong(len(remote) // 16)
        one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
        return int(max(0, self._libc.process_vm_readv(pid, local, one, remote, count, none)))


def main() -> None:
    with open("/proc/self/comm", "w") as file:
        file.write("bpfprof-reader")
    # Of its own session: where sched(7)'s autogroups are on, a nice value counts only within one.
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(os.getpriority(os.PRIO_PROCESS, 0)))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = _Server(socket.socket(fileno=int(sys.argv[1])), mmap.mmap(int(sys.argv[2]), WINDOW_BYTES))
    server.confine()
    server.serve()


if __name__ == "__main__":
    main()
