"""What may never answer, read by a process that can be left behind: requests in, bytes and descriptors out.

Memory, mappings and files of a target wait for whoever is behind them: a FUSE server that has stopped, a network file
system. Then no signal ends who reads, so bpfprof itself reads none of it. `reader()` asks reader_child.py and waits as
long as is said here. A process that took longer is asked once more, later, and a new child does the rest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import math
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from bpfprof.dataclass import dataclass
from bpfprof.model.ids import Pid
from bpfprof.proc import reader_child as child
from bpfprof.proc.confinement import READING, bits, reader_filter
from bpfprof.proc.living import living
from bpfprof.proc.privilege import Capability

# A child that has not answered for so long, and sleeps, is left behind. Each time the next gets half of that, down to
# the least, so that many such processes together take no longer than two. On a machine where the child itself takes
# longer to start than is usual, all else may, too: as many times as long, within limits.
_PATIENCE_S, _LEAST_PATIENCE_S = 0.3, 0.02
_USUAL_START_S, _MOST_TIMES_AS_LONG = 0.15, 10.0
_AGAIN_S = 3.0
_LONGEST_S = 10.0  # for one that only wants for a CPU
# How long in all bpfprof waits for the memory of a process, or its files, and for what share of the time besides.
_SLOW_S, _SLOW_SHARE = {False: 0.3, True: 1.0}, 0.01
_SLOW_LIMIT, _LITTLE = 1024, 16  # of those remembered, beyond which those with one part in so many of that are not
_MOST_LEFT_BEHIND = 64
_FIRST_FREE_FD = 10
_COPY_LIMIT_BYTES, _COPIES_LIMIT_BYTES = 64 << 20, 256 << 20
_CHILD = str(Path(__file__).with_name("reader_child.py"))
# f_type of statfs(2) (include/uapi/linux/magic.h) of file systems that answer from this machine's own disks and memory.
# Overlays are among them: what they lie on is not told.
_LOCAL = {
    *(0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1, 0xCA451A4E, 0x3153464A, 0x52654973, 0x3434),  # disks
    *(0x01021994, 0x858458F6, 0x958458F6, 0x794C7630, 0x73717368, 0xE0F5E1E2, 0x28CD3D45),  # memory, overlays, images
    *(0x9660, 0x4D44, 0x2011BAB0, 0x7366746E, 0x15013346),
}


@dataclass(frozen=True)
class FileStatus:
    """As stat(2) has it."""

    mode: int
    device: int
    inode: int


@dataclass
class OpenMemory:
    """Of a process: `fd` is ours and never read, `child_fd` that of the child with this number."""

    pid: Pid
    fd: int
    child_fd: int = -1
    child_number: int = 0


@dataclass(frozen=True)
class _Answer:
    result: int
    status: FileStatus
    extra: int
    fd: int


class _Child:
    """One that answers, until it does not."""

    def __init__(self, number: int, keeps: tuple[Capability, ...]) -> None:
        self.number = number
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        window = os.memfd_create("bpfprof-reader")
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, window)
            opened.callback(theirs.close)
            os.ftruncate(window, child.WINDOW_BYTES)
            self.window = mmap.mmap(window, child.WINDOW_BYTES)
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            opened.callback(os.close, nothing)
            given = []
            for number, fd in enumerate((nothing, nothing, nothing, theirs.fileno(), window)):
                # Away from the numbers that they get.
                copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD)
                opened.callback(os.close, copy)
                given.append((os.POSIX_SPAWN_DUP2, copy, number))
            command = [sys.executable, "-I", "-S", _CHILD, "3", "4"]
            # In a session of its own the terminal's signals do not reach it, and it holds no output of ours open.
            self.pid = os.posix_spawn(sys.executable, command, {}, file_actions=given, setsid=True)
        self._socket.send(child.CONFINE.pack(bits(keeps)) + reader_filter())
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._asked = 0
        self._began_ns = time.monotonic_ns()

    @functools.cached_property
    def times_as_long(self) -> float:
        """How many times as long as usual it took to start, within limits. Waits until it is ready."""
        wait_s = _LONGEST_S - (time.monotonic_ns() - self._began_ns) / 1e9
        if self._poll.poll(1000 * max(0.0, wait_s)) and (message := self._socket.recv(child.READY.size)):
            (ready_ns,) = child.READY.unpack(message)
            return float(min(max(1.0, (ready_ns - self._began_ns) / 1e9 / _USUAL_START_S), _MOST_TIMES_AS_LONG))
        return 1.0

    def ask(
        self, patience_s: float, action: int, fd: int, flags: int, address: int, size: int, text: bytes, passed: int
    ) -> tuple[tuple[int, ...], int] | None:
        """(the words of child.ANSWER, a descriptor or -1); None when none came."""
        self._asked = (self._asked + 1) & 0xFFFFFFFF
        request = child.REQUEST.pack(self._asked, action, fd, flags, address, size) + text
        if passed >= 0:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", passed))]
            self._socket.sendmsg([request], rights)
        else:
            self._socket.send(request)
        deadline_s = time.monotonic() + _LONGEST_S
        busy_ns: int | None = None
        while True:
            # It is left behind when it slept for most of the second half of the time: else it only wants for a CPU.
            if not self._poll.poll(500 * patience_s):
                before_ns, busy_ns = busy_ns, self._busy_ns()
                slept = before_ns is not None and busy_ns - before_ns < 0.25e9 * patience_s
                if ((slept and self._sleeps()) or time.monotonic() > deadline_s) and not self._poll.poll(0):
                    return None
                continue
            message, rights, _, _ = self._socket.recvmsg(
                child.ANSWER.size, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
            )
            received = struct.unpack("i", rights[0][2][:4])[0] if rights else -1
            if not message:
                return None
            if len(message) != child.ANSWER.size:  # that it is ready, which was waited for no longer
                continue
            words = child.ANSWER.unpack(message)
            if words[0] == self._asked:
                return words, received
            if received >= 0:  # of one that an exception took away
                os.close(received)

    def _busy_ns(self) -> int:
        """For how long it has had a CPU or wanted for one; the wait of one that wants for one now is not in it yet."""
        return sum(_scheduler_ns(self.pid))

    def _sleeps(self) -> bool:
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] != b"R"
        except (OSError, IndexError):
            return True

    def close(self) -> None:
        """It ends when it can."""
        self._socket.close()
        with contextlib.suppress(OSError):
            os.kill(self.pid, 9)

    def has_ended(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        return True


class Reader:
    """Its methods raise OSError; with errno ETIMEDOUT of a process that does not answer. Any thread may call them."""

    def __init__(self) -> None:
        # Processes whose memory did not answer, and those whose files did not -> from when on they are asked again.
        self._memory_of: dict[Pid, float] = {}
        self._files_of: dict[Pid, float] = {}
        self.keeps: tuple[Capability, ...] = READING  # of its capabilities
        self._child: _Child | None = None
        self._left: list[_Child] = []
        self._left_count = 0
        self._lock = threading.RLock()
        self._slow_ns: dict[tuple[Pid, bool], int] = {}  # waited for the memory of a process, or its files
        self._begin_ns = time.monotonic_ns()
        self._copied_bytes = 0

    def start(self) -> None:
        """Starts the child, which takes some hundredths of a second: sooner is better, but it is never needed."""
        with self._lock:
            self._living()

    def cpu_s(self) -> float:
        """What the child has used of a CPU."""
        return _scheduler_ns(self._child.pid)[0] / 1e9 if self._child is not None else 0.0

    @property
    def unanswering(self) -> set[Pid]:
        """Processes whose memory is not read any more, or not now."""
        return {pid for pid, again_s in self._memory_of.items() if again_s > time.monotonic()}

    @property
    def unanswering_files(self) -> set[Pid]:
        """And those whose files are not."""
        return {pid for pid, again_s in self._files_of.items() if again_s > time.monotonic()}

    @property
    def child_pid(self) -> Pid:
        """Of the child that is asked; 0: there is none."""
        return Pid(self._child.pid if self._child is not None else 0)

    def open_memory(self, pid: Pid) -> OpenMemory:
        """Stays with the address space it was opened on, also after an exec; `close_memory()` it."""
        with self._lock:
            answer = self._ask(pid, child.OPEN_PATH, size=os.O_RDONLY, text=b"/proc/%d/mem" % living(pid))
            return OpenMemory(pid, answer.fd, answer.result, self._living().number)

    def read_memory(self, memory: OpenMemory, address: int, size: int) -> bytes:
        """As many of `size` bytes, at most 4 MiB, as are readable from `address` on."""
        with self._lock:
            return self._ask_memory(memory, child.READ_MEMORY, address, size)

    def read_each(self, memory: OpenMemory, addresses: bytes, size: int) -> bytes:
        """`size` bytes from each address, a u64, on; then for each a byte that is 1 if all of them could be read."""
        with self._lock:
            return self._ask_memory(memory, child.READ_EACH, 0, size, addresses)

    def close_memory(self, memory: OpenMemory) -> None:
        """Reads after this fail."""
        with self._lock:
            if memory.fd >= 0:
                os.close(memory.fd)
                memory.fd = -1
                self._forget(memory.child_fd, memory.child_number)

    def read_pages(self, pid: Pid, remote: bytes) -> bytes:
        """Content of ranges of the address space that `pid` has now, an iovec each, up to the first unreadable page."""
        with self._lock:
            return self._window(self._ask(pid, child.READ_PAGES, living(pid), text=remote).result)

    def read_file(self, pid: Pid, path: str, limit: int) -> bytes:
        """At most `limit` bytes of a file of /proc that is about this process."""
        with self._lock:
            if pid == os.getpid():
                with open(path, "rb") as file:
                    return file.read(limit)
            if limit <= child.WINDOW_BYTES:
                return self._window(self._ask(pid, child.READ_FILE, size=limit, text=os.fsencode(path)).result)
            opened = self._ask(pid, child.OPEN_PATH, size=os.O_RDONLY, text=os.fsencode(path))
            os.close(opened.fd)
            number, parts, left = self._living().number, [], limit
            while left > 0:
                count = self._ask(pid, child.READ_ON, opened.result, size=min(left, child.WINDOW_BYTES)).result
                parts.append(self._window(count))
                left -= count
                if not count:
                    break
            self._forget(opened.result, number)
            return b"".join(parts)

    def stat(self, pid: Pid, path: str) -> FileStatus:
        """Of what a link of /proc/PID leads to."""
        with self._lock:
            return self._ask(pid, child.STAT, text=os.fsencode(path)).status

    def open_path(self, pid: Pid, path: str) -> tuple[int, FileStatus]:
        """A descriptor (O_PATH) of a directory."""
        with self._lock:
            path = path.replace("/proc/self/", f"/proc/{os.getpid()}/")
            answer = self._ask(pid, child.OPEN_PATH, size=os.O_PATH | os.O_DIRECTORY, text=os.fsencode(path))
            self._forget(answer.result, self._living().number)
            return answer.fd, answer.status

    def open_file(self, pid: Pid, path: str, root: int = -1, *, follow_last: bool = True, inode: int = 0) -> int:
        """A read-only descriptor of a regular file; where it is on a file system that may not answer, of a copy.

        root: a directory that symbolic links do not lead out of. inode: the number it must have.
        """
        with self._lock:
            flags = 0 if follow_last else child.NOFOLLOW
            answer = self._ask(pid, child.OPEN_FILE, flags=flags, text=os.fsencode(path), passed=root)
            number, fd = self._living().number, answer.fd
            try:
                if inode and answer.status.inode != inode:
                    raise FileNotFoundError(errno.ENOENT, "it is no longer the file that is mapped", path)
                if answer.extra not in _LOCAL:
                    os.close(fd)
                    fd = -1
                    fd = self._copy(pid, answer.result)
            except BaseException:
                if fd >= 0:
                    os.close(fd)
                raise
            finally:
                self._forget(answer.result, number)
            return fd

    def _copy(self, pid: Pid, child_fd: int) -> int:
        """In memory, of a file that the child has open."""
        copy = os.memfd_create("bpfprof-copy")
        try:
            size = 0
            while count := self._ask(pid, child.READ_ON, child_fd, size=1 << 20).result:
                size += count
                self._copied_bytes += count
                if size > _COPY_LIMIT_BYTES or self._copied_bytes > _COPIES_LIMIT_BYTES:
                    raise OSError(errno.EFBIG, "too large to be copied from a file system that may not answer")
                os.write(copy, self._window(count))
            return copy
        except BaseException:
            os.close(copy)
            raise

    def _ask_memory(self, memory: OpenMemory, action: int, address: int, size: int, text: bytes = b"") -> bytes:
        current = self._living()
        passed = -1 if memory.child_number == current.number else memory.fd
        answer = self._ask(memory.pid, action, memory.child_fd, address=address, size=size, text=text, passed=passed)
        memory.child_fd, memory.child_number = answer.extra, current.number
        return self._window(answer.result)

    def _window(self, count: int) -> bytes:
        assert self._child is not None
        return self._child.window[:count]

    def _ask(
        self, pid: Pid, action: int, fd: int = -1, *,
        flags: int = 0, address: int = 0, size: int = 0, text: bytes = b"", passed: int = -1,
    ) -> _Answer:  # fmt: skip
        is_file = action in (child.OPEN_FILE, child.READ_ON, child.STAT)
        unanswering = self._files_of if is_file else self._memory_of
        if time.monotonic() < unanswering.get(pid, 0.0):
            raise TimeoutError(errno.ETIMEDOUT, "it does not answer")
        current = self._living()
        try:
            patience_s = max(_LEAST_PATIENCE_S, _PATIENCE_S / 2**self._left_count) * current.times_as_long
            found = current.ask(patience_s, action, fd, flags, address, size, text, passed)
        except OSError:  # it has ended
            found = None
        if found is None:
            # Where CPUs are few it may have been held up by others: it is asked once more.
            unanswering[pid] = math.inf if pid in unanswering else time.monotonic() + _AGAIN_S
            self._leave_behind(current)
            raise TimeoutError(errno.ETIMEDOUT, "it does not answer")
        (_, error, result, slept_ns, mode, device, inode, extra), received = found
        slept_ns = int(slept_ns / current.times_as_long)
        if slept_ns and not (action == child.OPEN_FILE and extra in _LOCAL) and self._is_slow(pid, is_file, slept_ns):
            unanswering[pid] = math.inf
        if error:
            raise OSError(error, os.strerror(error))
        if action in (child.OPEN_FILE, child.OPEN_PATH) and received < 0:  # the kernel had no number for it
            self._forget(result, current.number)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return _Answer(result, FileStatus(mode, device, inode), extra, received)

    def _is_slow(self, pid: Pid, is_file: bool, slept_ns: int) -> bool:
        """One that answers, but late each time, is as bad as one that does not."""
        slow_ns = self._slow_ns.pop((pid, is_file), 0) + slept_ns
        if len(self._slow_ns) >= _SLOW_LIMIT:
            self._slow_ns = {key: ns for key, ns in self._slow_ns.items() if ns * _LITTLE >= 1e9 * _SLOW_S[key[1]]}
        self._slow_ns[pid, is_file] = slow_ns
        return slow_ns > 1e9 * _SLOW_S[is_file] + _SLOW_SHARE * (time.monotonic_ns() - self._begin_ns)

    def _living(self) -> _Child:
        if self._child is None:
            if self._left_count >= _MOST_LEFT_BEHIND:
                raise TimeoutError(errno.ETIMEDOUT, "too many processes do not answer")
            self._child = _Child(self._left_count + 1, self.keeps)
        return self._child

    def _leave_behind(self, current: _Child) -> None:
        self._left = [each for each in self._left if not each.has_ended()]
        self._left.append(current)
        self._left_count += 1
        self._child = None
        current.close()

    def _forget(self, child_fd: int, child_number: int) -> None:
        if self._child is not None and self._child.number == child_number and child_fd >= 0:
            with contextlib.suppress(OSError):
                self._ask(Pid(0), child.CLOSE, child_fd)


def _scheduler_ns(pid: int) -> tuple[int, int]:
    """For how long a task had a CPU, and for how long it wanted for one: /proc/PID/schedstat; zeros: not known."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/schedstat", "rb") as file:
        ran_ns, waited_ns, _ = map(int, file.read().split())
        return ran_ns, waited_ns
    return 0, 0


@functools.cache
def reader() -> Reader:
    """The one of this process."""
    return Reader()
