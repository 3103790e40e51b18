"""Who holds a lock that does not store it: thread states of a CPython in, the locks that `with` statements hold out.

While the body of `with lock:` runs, the frame keeps what it calls at the end on its value stack: a bound method
`lock.__exit__`, or from 3.14 on the method and the lock (LOAD_SPECIAL, Python/bytecodes.c, v3.14.0). What a frame has
no more use for may still stand there, so a lock counts only if it is locked, and a method only if it was not freed.

Structures: PyCFunctionObject, PyMethodObject (Include/cpython/methodobject.h, classobject.h), PyFunctionObject
(Include/cpython/funcobject.h), lockobject and rlockobject (Modules/_threadmodule.c), PyMutex and _PyRecursiveMutex
(Include/cpython/lock.h, Include/internal/pycore_lock.h), all of v3.8.18 to v3.15.2.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from bpfprof.cpython.code_objects import read_text
from bpfprof.cpython.context_managers import MANAGERS, exit_methods_of
from bpfprof.cpython.frame_values import FrameValues
from bpfprof.cpython.objects import Changed, Objects
from bpfprof.cpython.thread_state import ThreadStateRef, walk_frames

RLOCK = "_thread.RLock"
_LOCKS = ("_thread.lock", RLOCK)
_EXIT = "__exit__"
_HEAD_BYTES = 16
_OBJECT = struct.Struct("<QQQQ")  # reference count, type, and the two words after them
_FREED = 1 << 40  # in place of a count: what was freed begins with the address of other free memory, or 0
_PARKING = (3, 14)  # from here on a lock is a byte in the object, and threads wait elsewhere: Include/cpython/lock.h
_LOCKED, _HAS_PARKED = 1, 2
_ADDRESS_BEFORE = 8  # struct wait_entry: park_arg, addr, sema; Python/parking_lot.c (v3.14.10, v3.15.2)
_OWNER = struct.Struct("<QQ")  # from 3.14 on, of a locked RLock, after a word with its lock: thread, level
_NAME_BYTES = 16
_NESTED = 3  # context managers that hold others
_Found = tuple[str, tuple[int, ...]]
_NOTHING: _Found = ("", ())


@dataclass
class HeldLocks:
    """Of one process at one moment. released: state in Condition.wait() -> the lock that it has released meanwhile."""

    objects: Objects
    values: FrameValues
    states: list[ThreadStateRef]
    released: Mapping[int, int] = field(default_factory=dict)
    _holds: dict[int, list[int]] = field(default_factory=dict)  # address of a state -> locks
    _seen: dict[int, _Found] = field(default_factory=dict)

    def holder(self, futex: int, waiting: int) -> tuple[ThreadStateRef | None, int]:
        """(who holds what the thread state at `waiting` sleeps for at the address `futex`, the lock); 0: not known."""
        layout = self.objects.layout
        if layout.code_type != 8 or layout.version < (3, 8):
            return None, 0
        if not self._holds:
            for state in self.states:
                self._look_at(int(state.address))
        if layout.version >= _PARKING:
            lock = self._parked_for(futex)
        else:
            held = (lock for locks in self._holds.values() for lock in locks)
            lock = next((lock for lock in held if self._futex_of(lock) == futex), 0)
        if not lock or not self._state_of(lock) & _LOCKED:
            return None, lock
        owner = self._stored_owner(lock)
        if owner:
            found = [it for it in self.states if it.pthread_id == owner]
        else:
            others = (it for it in self.states if int(it.address) != waiting)
            found = [it for it in others if lock in self._held_by(int(it.address))]
        return (found[0] if len(found) == 1 else None), lock

    def _held_by(self, state: int) -> set[int]:
        return {*self._holds[state]} - {self.released.get(state, 0)}

    def _look_at(self, state: int) -> None:
        """At its frames."""
        holds = self._holds.setdefault(state, [])
        layout = self.objects.layout
        walk = walk_frames(self.objects.memory, layout, state)
        for (code, _, mark), frame in zip(walk.frames, walk.addresses):
            if layout.shim_is_python or mark < layout.entry_marks_from:
                self._look_in(self.values.words(frame, code), holds)

    def _look_in(self, words: list[int], holds: list[int], nested: int = 0) -> None:
        for before, word in zip([0, *words], words):
            kind, locks = self._look(word, nested)
            called = self._look(before, nested)[0] if kind in ("lock", "manager") else kind
            if called == "exit":
                holds.extend(locks)

    def _look(self, address: int, nested: int) -> _Found:
        """What an object is, and which locks it is of: `lock`, `manager`, `exit` of them, or ""."""
        if address not in self._seen:
            self._seen[address] = _NOTHING  # what holds itself ends here
            with contextlib.suppress(Changed):
                self._seen[address] = self._found(address, nested) if address >> 12 else _NOTHING
        return self._seen[address]

    def _found(self, address: int, nested: int) -> _Found:
        data = self.objects.memory.read(address, _OBJECT.size)
        count, kind, first, second = _OBJECT.unpack(data) if data else (0, 0, 0, 0)
        if not 0 < count < _FREED or not kind >> 12 or kind % 8:
            return _NOTHING
        name = self.objects.name(kind)
        if name in _LOCKS or name == "Condition":
            return "lock", self._locks_of(address, nested)
        if name in MANAGERS:
            return "manager", self._locks_of(address, nested)
        if name in ("method_descriptor", "function"):
            return ("exit" if self._function_named(address, name) == _EXIT else ""), ()
        if name == "builtin_function_or_method" and self._name_of(second) in _LOCKS:
            text = self.objects.memory.read_up_to(self.objects.word(first), _NAME_BYTES)
            return ("exit", (second,)) if text.partition(b"\0")[0] == _EXIT.encode() else _NOTHING
        if name == "method" and self._function_named(first, self._name_of(first)) == _EXIT:
            return "exit", self._locks_of(second, nested)
        return _NOTHING

    def _locks_of(self, instance: int, nested: int) -> tuple[int, ...]:
        """Those that the end of a `with` of this object releases."""
        name = self._name_of(instance)
        if name in _LOCKS:
            return (instance,)
        if name == "Condition":
            return (self.objects.attribute(instance, "_lock"),)
        holds: list[int] = []
        if name in MANAGERS and nested < _NESTED:
            self._look_in(exit_methods_of(self.objects, self.values, instance), holds, nested + 1)
        return tuple(holds)

    def _function_named(self, address: int, kind: str) -> str:
        """func_name, or d_name of a function of C."""
        if kind not in ("method_descriptor", "function"):
            return ""
        is_new = self.objects.layout.version >= (3, 10)
        at = 24 if kind == "method_descriptor" else 32 if is_new else 64
        text = read_text(self.objects.memory, self.objects.layout, self.objects.word(address + at), _NAME_BYTES)
        return text or ""

    def _name_of(self, instance: int) -> str:
        return self.objects.name(self.objects.type_of(instance))

    def _parked_for(self, futex: int) -> int:
        """From 3.14 on a thread sleeps at a semaphore of its own, beside the address of what it waits for."""
        mutex = self.objects.memory.read_u64(futex - _ADDRESS_BEFORE) or 0
        lock = mutex - _HEAD_BYTES
        with contextlib.suppress(Changed):
            if mutex >> 12 and self._state_of(lock) & _HAS_PARKED and self._name_of(lock) in _LOCKS:
                return lock
        return 0

    def _futex_of(self, lock: int) -> int:
        """Of a lock before 3.14: the semaphore that it points to."""
        return self.objects.memory.read_u64(lock + _HEAD_BYTES) or 0

    def _state_of(self, lock: int) -> int:
        """Whether it is locked, and whether threads wait."""
        if self.objects.layout.version >= _PARKING:
            data = self.objects.memory.read(lock + _HEAD_BYTES, 1)
            return data[0] if data else 0
        data = self.objects.memory.read(self._futex_of(lock), 4)  # struct new_sem of glibc: the value comes first
        return _LOCKED if data == bytes(4) else 0

    def _stored_owner(self, lock: int) -> int:
        """pthread id of who has locked an RLock, from 3.14 on; else 0."""
        if self.objects.layout.version < _PARKING or self._name_of(lock) != RLOCK:
            return 0
        data = self.objects.memory.read(lock + _HEAD_BYTES + 8, _OWNER.size)
        thread, _ = _OWNER.unpack(data) if data else (0, 0)
        return int(thread)
