"""What a thread waits for and who holds it: a blocked call in, a `WaitsFor` out. Only what is stored is told.

Nothing is guessed: a `threading.Lock` does not store its holder, which is known only while a `with` statement holds it.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from bpfprof.account.reasons import FUTEX_PRIVATE
from bpfprof.capture.descriptors import DescriptorKinds
from bpfprof.capture.file_locks import FileLocks
from bpfprof.capture.frame_reader import FrameReader
from bpfprof.capture.lock_files import awaited_lock_file
from bpfprof.capture.polled import OPEN_ENDS, holders_of, others_of_pipe, polled_descriptors, reads_pipe
from bpfprof.capture.process import Process
from bpfprof.capture.stored_owners import RLOCK_VERSIONS, StoredOwners
from bpfprof.cpython.code_objects import Unresolved
from bpfprof.cpython.frame_values import FrameValues
from bpfprof.cpython.futures import Futures, PlacedFrame
from bpfprof.cpython.held_locks import HeldLocks
from bpfprof.cpython.objects import Objects
from bpfprof.cpython.thread_state import ThreadStateRef
from bpfprof.cpython.threading_waits import ThreadingWaits
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.now import ANSWER, GIL, SIGNAL, WaitsFor
from bpfprof.model.samples import FD_CALLS, SOCKET_CALLS
from bpfprof.model.syscalls import syscall_name
from bpfprof.proc import tasks
from bpfprof.proc.living import living
from bpfprof.proc.memory import MemoryAtOnce
from bpfprof.proc.reader import reader
from bpfprof.proc.sockets import SocketNames
from bpfprof.proc.tasks import BlockedSyscall
from bpfprof.proc.text import with_controls_replaced

_THREADING, _IMPORTLIB, _SYNCHRONIZE = "threading.py", "importlib._bootstrap>", "multiprocessing/synchronize.py"
_FIRST_IS_FD = frozenset(FD_CALLS)
_POLLS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2")
_EPOLLS = ("epoll_wait", "epoll_pwait")
_WRITES = ("write", "writev")
_SLEEPS = ("nanosleep", "clock_nanosleep")
_OPENS = {"open": 0, "openat": 1}  # -> which argument is the path
_AT_FDCWD = 0xFFFFFF9C  # include/uapi/linux/fcntl.h
_PATH_BYTES = 4096  # PATH_MAX, include/uapi/linux/limits.h
# The argument of futex() that is 0 where it waits without end, and that of epoll_wait() that is negative then.
_TIMEOUT = 3
_WITHOUT_END = 1 << 31  # of 32 bits
# Of polls: milliseconds, or where a time is.
_TIMEOUT_AT = {"poll": 2, "ppoll": 2, "select": 4, "pselect6": 4, "epoll_wait": 3, "epoll_pwait": 3, "epoll_pwait2": 3}
_OWN_LIMIT = 8  # descriptors of an event loop that are its own
_NOTHING_COMES = "no connection, timer, signal or other thread can wake its loop"
_NOBODY_WRITES, _NOBODY_READS = "no one else could write to it", "no one else could read it"
_NOBODY_ANSWERS = "its own process has the other end, and no other thread"
_NO_THREAD = "no other thread of its process is alive"
_SOCKETS = SocketNames()  # of all looks: on a host with many connections they are read at times only
_COULD_LIMIT = 64  # threads of which one could end a wait
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
    """Of one process. tid_of: its threads by the id in their own pid namespace; states: those of its interpreters.

    By thread: frames, innermost first; sleeps_at, the call of futex() that it sleeps in. unwound: of a thread, the
    addresses of its functions of C, innermost first; () where they are not known.
    """

    def __init__(
        self,
        process: Process,
        tid_of: Mapping[int, Tid],
        states: list[ThreadStateRef],
        gil_tid: Tid | None,
        frames: Mapping[Tid, list[PlacedFrame]],
        sleeps_at: Mapping[Tid, BlockedSyscall],
        reader: FrameReader,
        unwound: Callable[[Tid], Sequence[int]],
    ) -> None:
        self._process, self._tid_of, self._gil_tid = process, tid_of, gil_tid
        self._state_of = {tid_of[each.native_thread_id]: each for each in states if each.native_thread_id in tid_of}
        self._tid_of_ident = {state.pthread_id: tid for tid, state in self._state_of.items()}
        # Of one moment, for what was read of the threads that wait came before: so each place is read once.
        memory = MemoryAtOnce(process.memory) if process.memory is not None else None
        self._stored = StoredOwners(process, memory, tid_of, self._tid_of_ident, self._may_own)
        self._reader = reader
        # Of the innermost frame, if it is in one of these.
        self._frames = {
            tid: of_it[0][:3]
            for tid, of_it in frames.items()
            if of_it and of_it[0][3].endswith((_THREADING, _IMPORTLIB, _SYNCHRONIZE))
        }
        self._held: HeldLocks | None = None
        self._waits: ThreadingWaits | None = None
        self._futures: Futures | None = None
        self._stacks, self._unwound = frames, unwound
        self._values: FrameValues | None = None
        found = process.interpreter
        if found is not None and memory is not None:
            objects = Objects(memory, found.layout)
            values = FrameValues(objects)
            self._values = values
            self._waits = ThreadingWaits(objects, values)
            state_of = self._state_of
            at = {int(state_of[tid].address): call.args[0] for tid, call in sleeps_at.items() if tid in state_of}
            endless = frozenset(tid for tid, call in sleeps_at.items() if not call.args[_TIMEOUT])
            self._futures = Futures(objects, values, frames, endless)
            forked = state_of.keys() - {process.pid} if tasks.is_forked(process.pid) else ()
            doubtful = frozenset(int(state_of[tid].address) for tid in forked)
            self._held = HeldLocks(objects, values, states, at, self._released_in, doubtful)
        self._descriptors = DescriptorKinds(_SOCKETS)
        self._locks: dict[int, int] = {}  # address -> number, in the order in which they are met
        self._file_locks = FileLocks(process.pid)

    def of(self, tid: Tid, call: BlockedSyscall, reason: str) -> WaitsFor | None:
        """Of a thread and its call. None when it waits for nothing that has a name: a time, or what is not known."""
        name = syscall_name(call.number) if call.number >= 0 else ""
        if reason == "gil":
            return WaitsFor(GIL, "GIL", self._gil_tid, self._process.pid if self._gil_tid else None)
        if name == "futex":
            return self._lock(tid, call)
        if reason == "child" and name not in _POLLS:
            return self._child(call, name)
        if reason == "file-lock":
            return WaitsFor("file-lock", self._descriptor(call.args[0]), *self._file_locks.holder(call))
        if name in _POLLS:
            return self._polled(tid, call, name)
        if name in _SLEEPS:
            return self._database(tid, call) or self._lock_file(tid)
        if name in _OPENS and reason != "disk":
            at_folder = name == "openat" and call.args[0] & 0xFFFFFFFF != _AT_FDCWD
            return None if at_folder else self._fifo(call.args[_OPENS[name]])
        if call.number in _FIRST_IS_FD or name in SOCKET_CALLS:
            kind = {"net": "socket", "pipe": "pipe", "device": "device"}.get(reason, "file")
            if kind == "pipe":
                return self._of_pipe(tid, call.args[0], name)
            if kind == "socket":
                return self._socket(tid, call.args[0])
            return WaitsFor(kind, self._descriptor(call.args[0]))
        return None

    def _polled(self, waiting: Tid, call: BlockedSyscall, name: str) -> WaitsFor | None:
        pid, has_end = self._process.pid, _polls_for_a_time(name, call)
        polled = polled_descriptors(pid, name, call, self._process.memory)
        if name in _EPOLLS and self._polls_nothing(call, polled):
            return WaitsFor("poll", "event loop", nobody=_NOTHING_COMES)
        if polled and self._descriptors.are_pipes(pid, polled):
            return self._polled_pipes(waiting, polled, has_end)
        child = self._descriptors.process(pid, polled[0]) if len(polled) == 1 else None
        if child:
            return self._of_child(f"process {child}", child)  # of which it may be no parent
        if len(polled) == 1:
            return self._socket(waiting, polled[0], has_end)
        asked = self._descriptors.asked(pid, polled)
        return WaitsFor(ANSWER, self._descriptor(asked), has_end=has_end) if asked is not None else None

    def _polls_nothing(self, call: BlockedSyscall, polled: list[int]) -> bool:
        """Whether an event loop waits without end for what only its own, sleeping thread could send."""
        pid = self._process.pid
        is_alone = len(self._tid_of) == 1 and call.args[_TIMEOUT] & _WITHOUT_END
        if not 0 < len(polled) <= _OWN_LIMIT or not is_alone or tasks.handles_signals(pid):
            return False
        return self._descriptors.are_own_pairs(pid, polled)

    def _socket(self, waiting: Tid, number: int, has_end: bool = False) -> WaitsFor:
        """Who is at its other end."""
        pid, name = self._process.pid, self._descriptor(number)
        inode = self._descriptors.other_end(pid, number & 0xFFFFFFFF)
        having = OPEN_ENDS.of_socket(pid, inode)
        pids = sorted(having) if having else holders_of(pid, f"socket:[{inode}]") if inode else []
        other = pids[0] if len(pids) == 1 and pids[0] != pid else None
        wanted = WaitsFor("socket", name, None, other)
        return wanted if has_end else self._with_others(wanted, waiting, having, _NOBODY_ANSWERS)

    def _database(self, tid: Tid, call: BlockedSyscall) -> WaitsFor | None:
        """SQLite sleeps for as long as it was told to, while another process has the database locked."""
        memory = self._process.memory
        found = self._file_locks.of_sqlite(call, memory, partial(self._unwound, tid)) if memory else None
        return WaitsFor("file-lock", self._descriptor(found[0]), None, found[1], has_end=True) if found else None

    def _lock_file(self, tid: Tid) -> WaitsFor | None:
        """A library sleeps between looks at a lock file."""
        path = awaited_lock_file(self._stacks.get(tid, ()), self._values) if self._values is not None else ""
        pid = self._file_locks.holder_of(path) if path else None
        return WaitsFor("file-lock", with_controls_replaced(path), None, pid, has_end=True) if pid else None

    def _fifo(self, path_at: int) -> WaitsFor | None:
        """To open one waits until somebody opens its other end; None: it is none. path_at: address of its path."""
        memory, pid = self._process.memory, self._process.pid
        path = os.fsdecode(memory.read_up_to(path_at, _PATH_BYTES).partition(b"\0")[0]) if memory else ""
        folder = "root" if path.startswith("/") else "cwd"
        if not path or ".." in path.split("/"):  # the process says it: it could lead out of its root
            return None
        try:
            mode = reader().stat(pid, f"/proc/{living(pid)}/{folder}/{path.lstrip('/')}").mode
        except (OSError, ValueError):
            return None
        name, nobody = with_controls_replaced(path), "nobody has opened its other end"
        return WaitsFor("pipe", name, nobody=nobody) if stat.S_ISFIFO(mode) else None

    def _of_pipe(self, waiting: Tid, number: int, name: str) -> WaitsFor:
        """Who has its other end, where that is one process; of one that is full, one other that could read it."""
        pid, fd = self._process.pid, number & 0xFFFFFFFF
        writes, having = name in _WRITES, OPEN_ENDS.of_pipe(pid, fd)
        others = (having or {*others_of_pipe(pid, fd)}) - {pid} if writes else (having or set()) - {pid}
        is_one = len(others) == 1 and (writes or others == having)
        wanted = WaitsFor("pipe", self._descriptor(number), None, min(others) if is_one else None, reads=not writes)
        return self._with_others(wanted, waiting, having, _NOBODY_READS if writes else _NOBODY_WRITES)

    def _polled_pipes(self, waiting: Tid, fds: Sequence[int], has_end: bool) -> WaitsFor:
        """Who has their other ends where that is one process, as a child is whose output is waited for."""
        pid, name = self._process.pid, self._descriptor(fds[0])
        having = [OPEN_ENDS.of_pipe(pid, fd) for fd in fds]
        pids = {each for of_one in having for each in of_one or ()}
        if not all(having) or len(pids) != 1:
            return WaitsFor("pipe", name)
        (other,) = (pids - {pid}) or (None,)
        wanted = WaitsFor("pipe", name, None, other, reads=reads_pipe(pid, fds[0]))
        return wanted if has_end else self._with_others(wanted, waiting, pids, _NOBODY_ANSWERS)

    def _with_others(self, wanted: WaitsFor, waiting: Tid, having: Collection[Pid] | None, nobody: str) -> WaitsFor:
        """The same with those of these processes' threads that could end it: the thread that waits could not."""
        could = self._threads_of(having)
        others = [each for each in could if each[1] != waiting]
        if could and not others:
            return replace(wanted, held_by_pid=None, nobody=nobody)
        if len(others) == 1:
            wanted = replace(wanted, held_by_tid=others[0][1], held_by_pid=others[0][0])
        return replace(wanted, could=could if len(could) > 1 else ())

    def _threads_of(self, pids: Collection[Pid] | None) -> tuple[tuple[Pid, Tid], ...]:
        """All threads of these processes, for which a thread of this one waits that no signal calls away; (): it is not
        known, or they are many."""
        if not pids or len(pids) > _COULD_LIMIT or tasks.handles_signals(self._process.pid):
            return ()
        threads_of = {pid: tasks.list_living_threads(pid) for pid in sorted(pids)}
        found = tuple((pid, tid) for pid, threads in threads_of.items() for tid in threads)
        return found if all(threads_of.values()) and len(found) <= _COULD_LIMIT else ()

    def _lock(self, waiting: Tid, call: BlockedSyscall) -> WaitsFor:
        has_end = bool(call.args[_TIMEOUT])
        ident = self._waits.joined(*self._frames[waiting]) if self._waits and waiting in self._frames else 0
        if ident:
            tid = self._tid_of_ident.get(ident)
            return WaitsFor("thread", "end of thread", tid, self._process.pid if tid else None, has_end=has_end)
        future = self._futures.awaited(waiting) if self._futures else 0
        if future:
            tid, nobody = self._futures.runs(future) if self._futures else (None, "")
            if tid is None and len(self._tid_of) == 1 and not tasks.handles_signals(self._process.pid):
                nobody = _NO_THREAD
            pid = None if tid is None else self._process.pid
            return WaitsFor("future", "a future", tid, pid, has_end=has_end, nobody="" if has_end else nobody)
        condition = self._condition(waiting, call)
        if condition:
            return self._notified(condition, call)
        address, found, owner = call.args[0], self._process.interpreter, self._stored.of(call)
        importer = self._waits.imports(*self._frames[waiting]) if self._waits and waiting in self._frames else 0
        if owner is None and importer in self._tid_of_ident:
            owner = self._tid_of_ident[importer], self._process.pid
        held_in = None
        if owner is None and found is not None:
            held, lock = self._held.holder(address) if self._held and waiting in self._state_of else (None, 0)
            tid = self._tid_of.get(held.state.native_thread_id) if held else None
            owner = (tid, self._process.pid) if tid is not None else None
            held_in = self._reader.frames([held.frame])[0] if held and held.frame else None
            if found.layout.version > RLOCK_VERSIONS[1] and call.args[1] & FUTEX_PRIVATE:
                if not lock:
                    return WaitsFor("lock", "lock")  # its address says who waits, not for what
                address = lock
        number = self._locks.setdefault(address, len(self._locks) + 1)
        name = f"lock #{number}"
        if owner is None and not call.args[1] & FUTEX_PRIVATE and self._stored.is_counting(call):
            return WaitsFor("semaphore", f"semaphore #{number}", has_end=has_end)
        if owner is None:
            return WaitsFor("lock", name, has_end=has_end, nobody="" if has_end else self._nobody(call))
        return WaitsFor("lock", name, *owner, held_in=held_in, has_end=has_end)

    def _condition(self, waiting: Tid, call: BlockedSyscall) -> int:
        """Address of the condition whose notify() it waits for; 0: it waits for none."""
        if self._waits is None or self._held is None or waiting not in self._frames:
            return 0
        condition, lock = self._waits.notified(*self._frames[waiting])
        return condition if lock and self._held.is_awaited(lock, call.args[0]) else 0

    def _notified(self, condition: int, call: BlockedSyscall) -> WaitsFor:
        """Nobody has a condition: any thread may notify it, and a signal's handler where its process has no other."""
        has_end, nobody = bool(call.args[_TIMEOUT]), ""
        if call.args[1] & FUTEX_PRIVATE and len(self._tid_of) == 1 and not has_end:
            if tasks.handles_signals(self._process.pid):
                return WaitsFor(SIGNAL, "a signal")
            nobody = _NO_THREAD
        number = self._locks.setdefault(condition, len(self._locks) + 1)
        return WaitsFor("condition", f"condition #{number}", has_end=has_end, nobody=nobody)

    def _nobody(self, call: BlockedSyscall) -> str:
        """Why no one who is alive can give the lock, "" where someone might."""
        if call.args[1] & FUTEX_PRIVATE:
            return _NO_THREAD if len(self._tid_of) == 1 else ""
        return "no process that is alive has it" if self._stored.is_orphan(call) else ""

    def _may_own(self, tid: Tid) -> bool:
        return self._held is not None and self._held.may_own(self._state_of[tid])

    def _released_in(self, frame: int, code: int) -> int:
        """The lock that a frame has released until it is woken; 0: none."""
        known = self._reader.code(code)
        if self._waits is None or isinstance(known, Unresolved) or not known.filename.endswith(_THREADING):
            return 0
        return self._waits.released_lock(frame, code, known.qualname)

    def _child(self, call: BlockedSyscall, name: str) -> WaitsFor:
        wanted = call.args[1] if name == "waitid" and call.args[0] == _P_PID else call.args[0]
        pid = struct.unpack("<i", struct.pack("<I", wanted & 0xFFFFFFFF))[0]
        if name not in ("wait4", "waitid") or pid <= 0 or (name == "waitid" and call.args[0] != _P_PID):
            return WaitsFor("child", "any child")
        inner = {tasks.namespace_tids(child, Tid(child))[-1:]: child for child in tasks.children(self._process.pid)}
        return self._of_child(f"child {pid}", inner.get((pid,)))

    def _of_child(self, name: str, child: Pid | None) -> WaitsFor:
        could = self._threads_of([child] if child else None)
        holder, several = (could[0][1], ()) if len(could) == 1 else (None, could)
        return WaitsFor("child", name, holder, child, could=several)

    def _descriptor(self, number: int) -> str:
        fd = number & 0xFFFFFFFF
        found = self._descriptors.name_now(self._process.pid, fd)
        return f"fd {fd}: {with_controls_replaced(found)}" if found else f"fd {fd}"


def _polls_for_a_time(name: str, call: BlockedSyscall) -> bool:
    """Whether a call of poll(), select() or epoll_wait() ends when a time is over."""
    if name in ("poll", *_EPOLLS):
        return not call.args[_TIMEOUT_AT[name]] & _WITHOUT_END
    return bool(call.args[_TIMEOUT_AT[name]])  # where that time is
