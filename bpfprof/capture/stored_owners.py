"""Who holds a lock that stores it: the address that a thread sleeps at and its C stack in, the owner out.

Mutexes of C, threading.RLock before 3.14, and locks of multiprocessing, which say it in the process that holds them.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping

from bpfprof import abi
from bpfprof.capture.process import Process
from bpfprof.cpython.held_locks import RLOCK
from bpfprof.cpython.layout import FREE_THREADED
from bpfprof.cpython.objects import Changed, Objects
from bpfprof.errors import TargetError
from bpfprof.model.ids import Pid, Tid
from bpfprof.proc import tasks
from bpfprof.proc.maps import read_maps
from bpfprof.proc.memory import Memory, ProcessMemory
from bpfprof.proc.tasks import BlockedSyscall

Owner = tuple[Tid, Pid]
# struct __pthread_mutex_s of glibc x86-64: __lock, __count, __owner; sysdeps/x86/nptl/bits/struct_mutex.h (2.31).
_MUTEX = struct.Struct("<iIi")
_CONTENDED = 2  # of __lock, nptl/lowlevellock.h
# rlockobject after the head of an object: rlock_lock, rlock_owner, rlock_count; Modules/_threadmodule.c (3.8 to 3.13).
# From 3.14 on a lock is a byte, and its futex is the waiting thread's own.
_RLOCK = struct.Struct("<QQQ")
RLOCK_VERSIONS = ((3, 6), (3, 13))
# SemLockObject after the head: handle, last_tid, count, maxvalue; Modules/_multiprocessing/semaphore.c (3.6 to 3.15).
_SEMAPHORE, _SEMAPHORE_NAME = struct.Struct("<QQii"), "_multiprocessing.SemLock"
_HEAD_BYTES, _STACK_BYTES = 16, 4096  # of the object; above the stack pointer, where its C function keeps it
_LEAST_ADDRESS = 1 << 16  # vm.mmap_min_addr, mostly: what is below is a number
_PROCESSES_LIMIT = 1000  # that may have a semaphore mapped
_PTHREAD_TID = abi.CONSTANTS["BP_PTHREAD_TID"]


class StoredOwners:
    """Of one process and its memory at one moment. tid_of: its threads by the id in their own pid namespace;
    tid_of_ident: by pthread id.

    may_own: whether a thread is the one that an RLock stores, and not one that had the same pthread id.
    """

    def __init__(
        self,
        process: Process,
        memory: Memory | None,
        tid_of: Mapping[int, Tid],
        tid_of_ident: Mapping[int, Tid],
        may_own: Callable[[Tid], bool],
    ) -> None:
        self._process, self._memory, self._tid_of = process, memory, tid_of
        self._tid_of_ident, self._may_own = tid_of_ident, may_own
        self._relatives: list[Pid] | None = None

    def of(self, call: BlockedSyscall) -> Owner | None:
        """Of what a thread sleeps for in futex(); None when nobody is known."""
        memory = self._memory
        if memory is None:
            return None
        tid = self._mutex_owner(memory, call.args[0])
        if tid is not None:
            return tid, self._process.pid
        return self._object_owner(memory, call)

    def _mutex_owner(self, memory: Memory, address: int) -> Tid | None:
        data = memory.read(address, _MUTEX.size)
        lock, _, owner = _MUTEX.unpack(data) if data else (0, 0, 0)
        return self._tid_of.get(owner) if lock == _CONTENDED else None

    def _object_owner(self, memory: Memory, call: BlockedSyscall) -> Owner | None:
        """The C function that waits has the object on its stack, and that has the futex."""
        found = self._process.interpreter
        if found is None or found.build == FREE_THREADED:
            return None
        objects = Objects(memory, found.layout)
        for address in self._objects_at(memory, call):
            try:
                kind = objects.type_of(address)
                name = objects.name(kind)
            except Changed:
                continue
            if name == RLOCK and RLOCK_VERSIONS[0] <= found.layout.version <= RLOCK_VERSIONS[1]:
                _, ident, count = _RLOCK.unpack(memory.read(address + _HEAD_BYTES, _RLOCK.size) or bytes(_RLOCK.size))
                tid = self._tid_of_ident.get(ident) if count else None
                return (tid, self._process.pid) if tid is not None and self._may_own(tid) else None
            if name == _SEMAPHORE_NAME:
                return self._semaphore_owner(address, kind, call.args[0])
        return None

    def _objects_at(self, memory: Memory, call: BlockedSyscall) -> Iterator[int]:
        """What is on the C stack and has the address of the futex after its head."""
        stack = memory.read_up_to(call.stack_pointer, _STACK_BYTES)
        for (address,) in sorted(set(struct.iter_unpack("<Q", stack[: len(stack) // 8 * 8]))):
            if address >= _LEAST_ADDRESS and not address % 8 and memory.read_u64(address + _HEAD_BYTES) == call.args[0]:
                yield address

    def _semaphore_owner(self, address: int, kind: int, futex: int) -> Owner | None:
        """A child that was forked has the object at the same address; a semaphore of several has no owner."""
        for pid in [self._process.pid, *self._forked()]:
            found = self._semaphore_of(pid, address, kind, futex)
            if found is not None and found[0] and found[1] == 1:
                tids = tasks.list_threads(pid)
                tid = next((tid for tid in tids if tasks.namespace_tids(pid, tid)[-1:] == (found[0],)), None)
                return (tid, pid) if tid is not None else None
        return None

    def _semaphore_of(self, pid: Pid, address: int, kind: int, futex: int) -> tuple[int, int] | None:
        """(the thread of a process that has it, by the id in its own pid namespace, 0: none, how many may have it at
        once); None: its object is not there."""
        try:
            with ProcessMemory(pid) as memory:
                data = memory.read(address + _HEAD_BYTES, _SEMAPHORE.size)
                handle, ident, count, most = _SEMAPHORE.unpack(data) if data else (0, 0, 0, 0)
                if handle != futex or memory.read_u64(address + _HEAD_BYTES - 8) != kind:
                    return None
                return ((memory.read_u64(ident + _PTHREAD_TID) or 0) & 0xFFFFFFFF if count > 0 else 0), most
        except TargetError:
            return None

    def is_orphan(self, call: BlockedSyscall) -> bool:
        """Whether it waits for a lock of multiprocessing that no process has which is alive and has it mapped."""
        address, kind = self._semaphore(call)
        pids = self._mapped_by(call.args[0]) if address else []
        return bool(pids) and all(self._semaphore_of(pid, address, kind, call.args[0]) == (0, 1) for pid in pids)

    def is_counting(self, call: BlockedSyscall) -> bool:
        """Whether it waits for a semaphore of multiprocessing that several may have at once: then nobody has it."""
        address, kind = self._semaphore(call)
        found = self._semaphore_of(self._process.pid, address, kind, call.args[0]) if address else None
        return found is not None and found[1] > 1

    def _semaphore(self, call: BlockedSyscall) -> tuple[int, int]:
        """(its object, the type of that) of a lock or a semaphore of multiprocessing; 0, 0: it is none."""
        memory, found = self._memory, self._process.interpreter
        if memory is None or found is None or found.build == FREE_THREADED:
            return 0, 0
        objects = Objects(memory, found.layout)
        for address in self._objects_at(memory, call):
            with contextlib.suppress(Changed):
                kind = objects.type_of(address)
                if objects.name(kind) == _SEMAPHORE_NAME:
                    return address, kind
        return 0, 0

    def _mapped_by(self, address: int) -> list[Pid]:
        """The processes that have the file mapped which is mapped here; [] where there are too many to look at."""
        pids = tasks.list_processes()
        if len(pids) > _PROCESSES_LIMIT:
            return []
        try:
            own = next(mapping for mapping in read_maps(self._process.pid) if mapping.start <= address < mapping.end)
        except (TargetError, StopIteration):
            return []
        found = []
        for pid in pids if own.is_file else ():
            with contextlib.suppress(TargetError):
                if any((mapping.device, mapping.inode) == (own.device, own.inode) for mapping in read_maps(pid)):
                    found.append(pid)
        return found

    def _forked(self) -> list[Pid]:
        """Its parent, the parent's other children, and its own."""
        if self._relatives is None:
            self._relatives = tasks.relatives(self._process.pid)
        return self._relatives
