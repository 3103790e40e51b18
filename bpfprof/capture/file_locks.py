"""Who has a file locked: a call that waits for it in, a thread or a process out.

/proc/locks has the process that locked it. flock() locks an open file, which processes share that were forked after it
was opened; each of them can give the lock back, and the lines `lock:` of its fdinfo say which they are. SQLite does not
wait for fcntl() but sleeps and looks again; where it has its locks: src/os.h, src/wal.h (3.40).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from functools import cached_property

from bpfprof.errors import TargetError
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.syscalls import syscall_name
from bpfprof.proc import tasks
from bpfprof.proc.living import living
from bpfprof.proc.maps import Mapping, read_maps
from bpfprof.proc.memory import Memory
from bpfprof.proc.reader import reader
from bpfprof.proc.tasks import BlockedSyscall

_DESCRIPTORS_LIMIT, _INFO_BYTES = 1024, 64 << 10  # of a process; of one of them

_SQLITE, _MODULE = "libsqlite3", "_sqlite3."
# Of the stack of who sleeps, up to the module; the longest that it sleeps, of `delays` in sqliteDefaultBusyCallback().
_STACK_BYTES, _LONGEST_NAP_NS = 16 << 10, 100_000_000
# PENDING_BYTE, RESERVED_BYTE and 510 bytes from SHARED_FIRST on in the database, 8 locks in its -shm.
_PENDING_BYTE = 1 << 30
_SQLITE_RANGES = ((_PENDING_BYTE, _PENDING_BYTE + 511), (120, 127))


class FileLocks:
    """Of one process and one look."""

    def __init__(self, pid: Pid) -> None:
        self._pid = pid
        self._locks: list[list[str]] | None = None

    def holder(self, call: BlockedSyscall) -> tuple[Tid | None, Pid | None]:
        """(the thread, where nothing else can give the lock back, the process) of a file that flock() or fcntl() wait
        for; None: not known."""
        fd = call.args[0] & 0xFFFFFFFF
        try:
            inode = reader().stat(self._pid, f"/proc/{living(self._pid)}/fd/{fd}").inode
        except OSError:
            inode = -1
        locks = self._all()
        kind = "FLOCK" if syscall_name(call.number) == "flock" else "POSIX"
        # "1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END"; one that waits has "->" after the number.
        blocked = {
            words[0]
            for words in locks
            if words[1:3] == ["->", kind] and words[5:6] == [str(self._pid)] and words[6].endswith(f":{inode}")
        }
        holders = {words[4] for words in locks if words[0] in blocked and words[1:2] == [kind] and len(words) > 5}
        word = holders.pop() if len(holders) == 1 else ""
        pid = Pid(int(word)) if word.isdigit() and int(word) else None
        if pid is None or tasks.list_threads(pid) != [Tid(pid)]:
            return None, pid
        is_shared = any(_has_lock(relative, self._pid, fd) for relative in tasks.relatives(pid))
        return (None if is_shared else Tid(pid)), pid

    def holder_of(self, path: str) -> Pid | None:
        """The process that has a file locked, by the path that this process has for it; None: none, or several."""
        folder = "cwd" if not path.startswith("/") else "root"
        if "\0" in path or ".." in path.split("/"):  # the process says it: it could lead out of its root
            return None
        try:
            inode = reader().stat(self._pid, f"/proc/{living(self._pid)}/{folder}/{path.lstrip('/')}").inode
        except (OSError, ValueError):
            return None
        words = {each[4] for each in self._all() if len(each) == 8 and each[5].endswith(f":{inode}")}
        word = words.pop() if len(words) == 1 else ""
        return Pid(int(word)) if word.isdigit() and int(word) else None

    def of_sqlite(
        self, call: BlockedSyscall, memory: Memory, unwound: Callable[[], Sequence[int]]
    ) -> tuple[int, Pid | None] | None:
        """(descriptor, process that has it locked, None: several) of the database that SQLite sleeps for; None: it
        does not, or that is not known. A connection of the same process can have it, too. unwound: where the thread's
        functions are, innermost first; () if that is not known. It is asked where SQLite may sleep for a database that
        is locked."""
        if not self._is_nap(call, memory):
            return None
        locked = self._sqlite_locks()
        found = [(fd, locked[inode]) for fd, inode in self._files() if inode in locked]
        if len({frozenset(pids) for _, pids in found}) != 1 or not self._is_of_sqlite(call, memory, unwound()):
            return None
        fd, pids = found[0]
        word = next(iter(pids)) if len(pids) == 1 else ""
        return fd, Pid(int(word)) if word.isdigit() and int(word) else None

    def _sqlite_locks(self) -> dict[int, set[str]]:
        """For each inode of a database the processes that a connection of this one can wait for.

        One of its own process is told by what it writes: the one that waits may read. Who has PENDING_BYTE waits itself
        for those that read.
        """
        own, locked, writes, waits = str(self._pid), dict[int, set[str]](), set[int](), set[int]()
        for words in self._all():
            if len(words) != 8 or words[1] != "POSIX" or not _has_sqlite_range(words[6], words[7]):
                continue
            inode = int(words[5].rpartition(":")[2])
            if words[4] != own:
                locked.setdefault(inode, set()).add(words[4])
            elif words[3] == "WRITE":
                (waits if int(words[6]) == _PENDING_BYTE else writes).add(inode)
        for inode in writes | (waits - set(locked)):
            locked.setdefault(inode, set()).add(own)
        return locked

    def _is_nap(self, call: BlockedSyscall, memory: Memory) -> bool:
        """Whether it sleeps for as long as SQLite may, in a process that has SQLite."""
        is_clock = syscall_name(call.number) == "clock_nanosleep"
        asked = memory.read_up_to(call.args[2 if is_clock else 0], 16) if any(map(_is_sqlite, self._code)) else b""
        if len(asked) < 16 or (is_clock and call.args[1]):  # time.sleep() of CPython 3.11 and later: until a time
            return False
        seconds, ns = struct.unpack("<qq", asked)
        return not seconds and ns <= _LONGEST_NAP_NS

    def _is_of_sqlite(self, call: BlockedSyscall, memory: Memory, unwound: Sequence[int]) -> bool:
        """Whether usleep() was called by SQLite, and that by Python's module: behind the code of the C library that of
        SQLite comes first on the stack, and then the module's. What SQLite has left there has other code behind it;
        where the stack was not unwound such can hide a true call, which is not told then.
        """
        own, is_sqlite = self._code_at(call.program_counter), False
        stack = b"" if unwound else memory.read_up_to(call.stack_pointer, _STACK_BYTES)
        words = (word for (word,) in struct.iter_unpack("<Q", stack[: len(stack) // 8 * 8]))
        for address in unwound or words:
            found = self._code_at(address)
            if found is None or found is own:
                continue
            if not _is_sqlite(found):
                return is_sqlite and found.path.rpartition("/")[2].startswith(_MODULE)
            is_sqlite = True
        return False

    def _code_at(self, address: int) -> Mapping | None:
        return next((each for each in self._code if each.start <= address < each.end), None)

    @cached_property
    def _code(self) -> list[Mapping]:
        try:
            return [mapping for mapping in read_maps(self._pid) if "x" in mapping.permissions]
        except TargetError:
            return []

    def _files(self) -> list[tuple[int, int]]:
        """(descriptor, inode) of what it has open."""
        found = []
        try:
            for word in os.listdir(f"/proc/{living(self._pid)}/fd")[:_DESCRIPTORS_LIMIT]:
                found.append((int(word), reader().stat(self._pid, f"/proc/{living(self._pid)}/fd/{word}").inode))
        except OSError:
            return []
        return found

    def _all(self) -> list[list[str]]:
        if self._locks is None:
            self._locks = tasks.file_locks()
        return self._locks


def any_is_locked() -> bool:
    """Whether any file of the machine is."""
    return any(len(words) == 8 for words in tasks.file_locks())


def _is_sqlite(mapping: Mapping) -> bool:
    return mapping.path.rpartition("/")[2].startswith(_SQLITE)


def _has_sqlite_range(first: str, last: str) -> bool:
    if not (first.isdigit() and last.isdigit()):
        return False
    return any(begin <= int(first) and int(last) <= end for begin, end in _SQLITE_RANGES)


def _has_lock(pid: Pid, other: Pid, fd: int) -> bool:
    """Whether a process has the file locked that is `fd` of the other, also through an open file that it shares."""
    try:
        path = os.readlink(f"/proc/{living(other)}/fd/{fd}")
        found = os.listdir(f"/proc/{living(pid)}/fd")[:_DESCRIPTORS_LIMIT]
    except OSError:
        return False
    for own in found:
        try:
            if os.readlink(f"/proc/{living(pid)}/fd/{own}") == path:
                text = reader().read_file(pid, f"/proc/{living(pid)}/fdinfo/{own}", _INFO_BYTES)
                if b"\nlock:" in text:
                    return True
        except OSError:
            continue
    return False
