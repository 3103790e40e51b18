"""What a thread waits for and who holds it: a blocked call in, a `WaitsFor` out. Only what is stored is told.

Nothing is guessed: of a lock that does not store its holder, as `threading.Lock` does not, there is none.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

from bpfprof.capture.process import Process
from bpfprof.cpython.layout import FREE_THREADED
from bpfprof.cpython.objects import Changed, Objects
from bpfprof.cpython.thread_state import ThreadStateRef
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.now import WaitsFor
from bpfprof.model.samples import FD_CALLS
from bpfprof.model.syscalls import syscall_name
from bpfprof.proc import tasks
from bpfprof.proc.memory import ProcessMemory
from bpfprof.proc.tasks import BlockedSyscall
from bpfprof.proc.text import with_controls_replaced

_SOCKET_CALLS = "connect accept accept4 sendto recvfrom sendmsg recvmsg recvmmsg sendmmsg"
_FIRST_IS_FD = frozenset(FD_CALLS)
# struct __pthread_mutex_s of glibc x86-64: __lock, __count, __owner; sysdeps/x86/nptl/bits/struct_mutex.h (2.31).
_MUTEX = struct.Struct("<iIi")
_CONTENDED = 2  # of __lock, nptl/lowlevellock.h
# rlockobject after the head of an object: rlock_lock, rlock_owner, rlock_count; Modules/_threadmodule.c (3.8 to 3.13).
# From 3.14 on a lock is a byte, and its futex is the waiting thread's own.
_RLOCK = struct.Struct("<QQQ")
_RLOCK_VERSIONS = ((3, 6), (3, 13))
_HEAD_BYTES, _STACK_BYTES = 16, 4096  # of the object; above the stack pointer, where its C function keeps it
_P_PID = 1  # of waitid(), include/uapi/linux/wait.h


def gil_holder(process: Process, states: list[ThreadStateRef]) -> int:
    """Address of the thread state that holds the GIL; 0: none, or not known."""
    found, memory = process.interpreter, process.memory
    if found is None or memory is None or not found.gil.address:
        return 0
    if found.gil.current:
        holder = memory.read_u64(found.gil.current) or 0
    else:
        locked = memory.read(found.gil.address + found.layout.gil_locked, 4)
        if locked is None or int.from_bytes(locked, "little", signed=True) != 1:
            return 0
        holder = memory.read_u64(found.gil.address + found.layout.gil_last_holder) or 0
    return holder if any(state.address == holder for state in states) else 0


class Holders:
    """Of one process. tid_of: its threads by the id in their own pid namespace; states: those of its interpreters."""

    def __init__(
        self, process: Process, tid_of: Mapping[int, Tid], states: list[ThreadStateRef], gil_tid: Tid | None
    ) -> None:
        self._process, self._tid_of, self._gil_tid = process, tid_of, gil_tid
        self._tid_of_ident = {
            state.pthread_id: tid_of[state.native_thread_id] for state in states if state.native_thread_id in tid_of
        }
        self._locks: dict[int, int] = {}  # address -> number, in the order in which they are met
        self._file_locks: list[list[str]] | None = None

    def of(self, call: BlockedSyscall, reason: str) -> WaitsFor | None:
        """None when it waits for nothing that has a name: a time, or what is not known."""
        name = syscall_name(call.number) if call.number >= 0 else ""
        if reason == "gil":
            return WaitsFor("gil", "GIL", self._gil_tid, self._process.pid if self._gil_tid else None)
        if name == "futex":
            return self._lock(call)
        if reason == "child":
            return self._child(call, name)
        if name == "flock" or (name == "fcntl" and reason == "lock"):
            return self._file_lock(call)
        if call.number in _FIRST_IS_FD or name in _SOCKET_CALLS.split():
            kind = {"net": "socket", "pipe": "pipe", "device": "device"}.get(reason, "file")
            return WaitsFor(kind, self._descriptor(call.args[0]))
        return None

    def _lock(self, call: BlockedSyscall) -> WaitsFor:
        address = call.args[0]
        memory, found, tid = self._process.memory, self._process.interpreter, None
        if memory is not None:
            tid = self._mutex_owner(memory, address) or self._rlock_owner(memory, call)
        if tid is None and found is not None and found.layout.version > _RLOCK_VERSIONS[1]:
            return WaitsFor("lock", "lock")  # its address says who waits, not for what
        number = self._locks.setdefault(address, len(self._locks) + 1)
        return WaitsFor("lock", f"lock #{number}", tid, self._process.pid if tid else None)

    def _mutex_owner(self, memory: ProcessMemory, address: int) -> Tid | None:
        data = memory.read(address, _MUTEX.size)
        lock, _, owner = _MUTEX.unpack(data) if data else (0, 0, 0)
        return self._tid_of.get(owner) if lock == _CONTENDED else None

    def _rlock_owner(self, memory: ProcessMemory, call: BlockedSyscall) -> Tid | None:
        """Of a threading.RLock: the C function that waits has the object on its stack, and that has the futex."""
        found = self._process.interpreter
        if found is None or not _RLOCK_VERSIONS[0] <= found.layout.version <= _RLOCK_VERSIONS[1]:
            return None
        if found.build == FREE_THREADED:
            return None
        objects = Objects(memory, found.layout)
        stack = memory.read_up_to(call.stack_pointer, _STACK_BYTES)
        for (address,) in sorted(set(struct.iter_unpack("<Q", stack[: len(stack) // 8 * 8]))):
            data = memory.read(address + _HEAD_BYTES, _RLOCK.size) if address and not address % 8 else None
            if data is None or _RLOCK.unpack(data)[0] != call.args[0]:
                continue
            try:
                names = objects.type_names(objects.type_of(address))
            except Changed:
                continue
            _, ident, count = _RLOCK.unpack(data)
            if "_thread.RLock" in names and count:
                return self._tid_of_ident.get(ident)
        return None

    def _child(self, call: BlockedSyscall, name: str) -> WaitsFor:
        wanted = call.args[1] if name == "waitid" and call.args[0] == _P_PID else call.args[0]
        pid = struct.unpack("<i", struct.pack("<I", wanted & 0xFFFFFFFF))[0]
        if name not in ("wait4", "waitid") or pid <= 0 or (name == "waitid" and call.args[0] != _P_PID):
            return WaitsFor("child", "any child")
        inner = {tasks.namespace_tids(child, Tid(child))[-1:]: child for child in tasks.children(self._process.pid)}
        return WaitsFor("child", f"child {pid}", None, inner.get((pid,)))

    def _file_lock(self, call: BlockedSyscall) -> WaitsFor:
        path = f"/proc/{self._process.pid}/fd/{call.args[0] & 0xFFFFFFFF}"
        holder = None
        try:
            inode = os.stat(path).st_ino
        except OSError:
            inode = -1
        if self._file_locks is None:
            self._file_locks = tasks.file_locks()
        kind = "FLOCK" if syscall_name(call.number) == "flock" else "POSIX"
        # "1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END"; one that waits has "->" after the number.
        blocked = {
            words[0]
            for words in self._file_locks
            if words[1:3] == ["->", kind] and words[5:6] == [str(self._process.pid)] and words[6].endswith(f":{inode}")
        }
        holders = {
            words[4] for words in self._file_locks if words[0] in blocked and words[1:2] == [kind] and len(words) > 5
        }
        if len(holders) == 1:
            word = holders.pop()
            holder = Pid(int(word)) if word.isdigit() and int(word) else None
        return WaitsFor("file-lock", self._descriptor(call.args[0]), None, holder)

    def _descriptor(self, number: int) -> str:
        fd = number & 0xFFFFFFFF
        try:
            return f"fd {fd}: {with_controls_replaced(os.readlink(f'/proc/{self._process.pid}/fd/{fd}'))}"
        except OSError:
            return f"fd {fd}"
