"""Who holds a lock that does not store it: thread states of a CPython in, the locks that `with` statements hold out.

While the body of `with lock:` runs, the frame keeps what it calls at the end: a bound method `lock.__exit__`, or from
3.14 on the method and the lock (LOAD_SPECIAL, Python/bytecodes.c, v3.14.0). A lock counts only if it is locked.

Who waits for a lock does not hold it, though it is in the body of a `with` of it: it may have released it there. Only
where no function from that body inwards has a name for a release does it wait for itself.

Structures: PyCFunctionObject, PyMethodObject (Include/cpython/methodobject.h, classobject.h), PyFunctionObject
(Include/cpython/funcobject.h), lockobject and rlockobject (Modules/_threadmodule.c), PyMutex and _PyRecursiveMutex
(Include/cpython/lock.h, Include/internal/pycore_lock.h), all of v3.8.18 to v3.15.2.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from bpfprof.cpython.code_objects import read_text
from bpfprof.cpython.context_managers import MANAGERS, exit_methods_of
from bpfprof.cpython.frame_values import FrameValues
from bpfprof.cpython.objects import Changed, Objects
from bpfprof.cpython.thread_state import RawFrame, ThreadStateRef, walk_frames
from bpfprof.cpython.with_bodies import WithBodies
from bpfprof.dataclass import dataclass

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
_RELEASE = "release"
_RELEASES = ("release", "unlock", "__exit__")  # in names
_Found = tuple[str, tuple[int, ...]]
_NOTHING: _Found = ("", ())


@dataclass(frozen=True)
class Hold:
    """A lock that a thread has. place: of the frame in whose body it is, the innermost frame is 0."""

    lock: int
    place: int


@dataclass(frozen=True)
class Held:
    """Who has a lock, and the frame that does."""

    state: ThreadStateRef
    frame: RawFrame | None


@dataclass
class HeldLocks:
    """Of one process at one moment. sleeps_at: by address of a state where it sleeps in futex(); released_in: of a
    frame and its code the lock that it, as Condition.wait(), has released meanwhile, 0: none. doubtful: states whose
    pthread id a thread may have had that is gone, which stays the owner of what it had."""

    objects: Objects
    values: FrameValues
    states: list[ThreadStateRef]
    sleeps_at: Mapping[int, int] = field(default_factory=dict)
    released_in: Callable[[int, int], int] = lambda _frame, _code: 0
    doubtful: frozenset[int] = frozenset()
    _bodies: WithBodies = field(init=False)
    _holds: dict[int, list[Hold]] = field(default_factory=dict)  # by address of a state
    _frames: dict[int, list[RawFrame]] = field(default_factory=dict)
    _seen: dict[int, _Found] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._bodies = WithBodies(self.objects, self.values)

    def holder(self, futex: int) -> tuple[Held | None, int]:
        """(who holds what threads sleep for at the address `futex`, the lock); None, 0: not known."""
        if self.objects.layout.code_type != 8:
            return None, 0
        self._look()
        lock = self._lock_at(futex)
        if not lock or not self._state_of(lock) & _LOCKED:
            return None, lock
        owner = self._stored_owner(lock)
        if owner:
            found = [Held(each, None) for each in self.states if each.pthread_id == owner and self.may_own(each)]
        else:
            found = [held for state in self.states if (held := self._held(state, lock))]
        return (found[0] if len(found) == 1 else None), lock

    def is_awaited(self, lock: int, futex: int) -> bool:
        """Whether who sleeps there waits for this lock, or this semaphore of multiprocessing."""
        try:
            parks = self.objects.layout.version >= _PARKING and self._name_of(lock) in _LOCKS
        except Changed:
            return False
        return self._parked_for(futex) == lock if parks else self._futex_of(lock) == futex

    def may_own(self, state: ThreadStateRef) -> bool:
        """Whether it is the one that an RLock stores: where that is in doubt it has to be where it will release one."""
        address = int(state.address)
        if address not in self.doubtful:
            return True
        self._look()
        try:
            names = {name for code, _, _ in self._frames[address] for name in self.values.used_names(code)}
            return _RELEASE in names or any(self._name_of(hold.lock) == RLOCK for hold in self._holds[address])
        except Changed:
            return False

    def _look(self) -> None:
        """At all states, once."""
        if not self._frames:
            for state in self.states:
                self._look_at(int(state.address))

    def _lock_at(self, futex: int) -> int:
        """The lock that those wait for who sleep there; 0: not known, or nobody has it."""
        if self.objects.layout.version >= _PARKING:
            return self._parked_for(futex)
        held = (hold.lock for holds in self._holds.values() for hold in holds)
        return next((lock for lock in held if self._futex_of(lock) == futex), 0)

    def _held(self, state: ThreadStateRef, lock: int) -> Held | None:
        address = int(state.address)
        place = next((each.place for each in self._holds[address] if each.lock == lock), None)
        if place is None:
            return None
        frames = self._frames[address][: place + 1]
        futex = self.sleeps_at.get(address)
        if futex is not None and self._lock_at(futex) == lock and self._may_release(frames):
            return None
        return Held(state, frames[-1])

    def _may_release(self, frames: Sequence[RawFrame]) -> bool:
        try:
            names = [name.lower() for code, _, _ in frames for name in self.values.used_names(code)]
        except Changed:
            return True
        return any(word in name for name in names for word in _RELEASES)

    def _look_at(self, state: int) -> None:
        """At its frames."""
        layout = self.objects.layout
        walk = walk_frames(self.objects.memory, layout, state)
        frames = [
            (raw, address)
            for raw, address in zip(walk.frames, walk.addresses)
            if layout.shim_is_python or raw[2] < layout.entry_marks_from
        ]
        self._frames[state] = [raw for raw, _ in frames]
        released = {self.released_in(address, raw[0]) for raw, address in frames}
        self._holds[state] = [
            Hold(lock, place)
            for place, ((code, _, _), address) in enumerate(frames)
            for method, instance in self._bodies.exits(address, code)
            for lock in self._left_by(method, instance)
            if lock not in released
        ]

    def _left_by(self, method: int, instance: int, nested: int = 0) -> tuple[int, ...]:
        """The locks that this call releases."""
        kind, locks = self._what(method, nested)
        if kind != "exit" or not instance:
            return locks if kind == "exit" else ()
        kind, locks = self._what(instance, nested)
        return locks if kind in ("lock", "manager") else ()

    def _what(self, address: int, nested: int) -> _Found:
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
        if name not in MANAGERS or nested >= _NESTED:
            return ()
        methods = exit_methods_of(self.objects, self._bodies, instance)
        return tuple(lock for method, own in methods for lock in self._left_by(method, own, nested + 1))

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
