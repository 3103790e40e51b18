"""Waits that did not end, spans -> which of them are for work, and which are stuck.

Idle is what is known to wait for work: for clients, for the next item of a queue, for a time, in a function that does
nothing else; and a thread of a library, whose own waits say little. What is known to wait for something that should
come is stuck: a lock, a file's lock, an answer, a pipe that is full. What may be either is stuck where no other thread
in the recording worked, for then no one else is what the program is about.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.known.services import LISTENING
from bpfprof.model.frames import FrameKind
from bpfprof.model.now import ANSWER, SIGNAL
from bpfprof.model.profile import LastWait, Profile
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import AWAIT_REASONS, reason_text
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.origins import STDLIB, is_runtime, origins
from bpfprof.query.code.stack_frames import Bools, StackFrames
from bpfprof.query.work.shares import CHILD, DISK, GPU, HANDED, IDLE, LOCK, NET, OTHER

_PART, _LEAST_NS = 0.5, 500_000_000  # of its thread's time, and of time: shorter waits say nothing
_LEAST_OF_PART_NS = 10_000_000_000  # of a part of a recording, where any answer may come after it
# So much where an answer or a disk may only be slow; or the second part, if that is so long, and so many times as long
# as others of its thread: before it hung, one that was launched had to start.
_PATIENT_PARTS, _SLOW_NS, _TIMES_SLOWER = (0.9, 0.75), 2_000_000_000, 10
_WHOLE_PART = 0.98  # a wait of so much of its thread's time is all that the thread did
_END_NS = 1_000_000  # so near to the end of its thread one has not ended
_TASK_END_NS = 300_000_000  # so near to the end a task was seen that waits on: they are looked at now and then
_BUSY = 0.5  # of a thread's time: it does something for who waits for its answer
_WORKS = 0.05  # of the longest thread's time: so much work says what a program is about

# Functions of C that wait for who has a lock; threads of libraries that wait for work do so in others.
_MUTEXES = frozenset(
    (
        *("pthread_mutex_lock", "__pthread_mutex_lock", "___pthread_mutex_lock", "__GI___pthread_mutex_lock"),
        *("__lll_lock_wait", "__lll_lock_wait_private", "lll_lock_wait", "__pthread_mutex_lock_full"),
        *("__pthread_mutex_timedlock", "pthread_mutex_timedlock", "__pthread_rwlock_wrlock", "__pthread_rwlock_rdlock"),
    )
)
# Those that wait so for the next client: one of several that accept.
TAKES_TURNS = frozenset(("wsgi_req_accept", "uwsgi_lock_futex", "proc_mutex_pthread_acquire", "apr_proc_mutex_lock"))
_ACCEPTS = frozenset(("accept", "accept4", "inet_csk_accept"))
WRITES = frozenset(("write", "writev", "pipe_write", "anon_pipe_write"))
_OPENS = ("open", "openat")  # of a FIFO: until its other end is opened
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")
_FRAMES = (FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.INLINED, FrameKind.KERNEL)  # which are no marks
# Threads of a pool of processes that pass on what it is given and what it answers, by (end of the path, functions).
HANDLERS = (
    ("multiprocessing/pool.py", {"_handle_workers", "_handle_tasks", "_handle_results"}),
    ("concurrent/futures/process.py", {"_queue_management_worker", "wait_result_broken_or_wakeup"}),
)
_STUCK, _UNSURE, _FOR_WORK, _BEHIND, _ASKED, _ANSWERS, _OTHER = range(7)
_OUTPUT = "output"
_SERVES = ("net", "poll", "pipe", "device")  # reasons of who waits for what comes from elsewhere


@dataclass(frozen=True)
class Known:
    """What was found of the spans so far: for each its share, whether it waits for what another thread does (behind) or
    for a lock that another is known to have (given)."""

    shares: Ints
    behind: Bools
    given: Bools


def settle_unended(profile: Profile, spans: npt.NDArray[np.void], frames: StackFrames, known: Known) -> Bools:
    """Which spans are stuck. Shares of those that wait for work, or behind others who do nothing, are set."""
    places = _unended(profile, spans)
    found = np.zeros(len(spans), np.bool_)
    if not len(places):
        return found
    shares, rows = known.shares, spans[places]
    walls = np.array([thread.wall_ns for thread in profile.threads], np.int64)
    is_whole = rows["duration_ns"] >= _WHOLE_PART * walls[rows["thread"]]
    is_long = rows["duration_ns"] >= (_LEAST_OF_PART_NS if profile.info.is_part else _LEAST_NS)
    rest = np.ones(len(spans), np.bool_)
    rest[places] = False
    asks = [wait.thread for wait in profile.last_waits if wait.kind == ANSWER]
    may_be_slow = np.isin(shares[places], (NET, DISK)) | np.isin(rows["thread"], asks)
    answered = np.flatnonzero(rest & np.isin(shares, (NET, DISK))) if may_be_slow.any() else places[:0]
    answered_ns = np.zeros(len(walls), np.int64)
    np.maximum.at(answered_ns, spans["thread"][answered], spans["duration_ns"][answered].astype(np.int64))
    is_slow = rows["duration_ns"] >= np.maximum(_TIMES_SLOWER * answered_ns[rows["thread"]], _SLOW_NS)
    parts = np.where(is_slow, *_PATIENT_PARTS[::-1])
    is_long &= ~may_be_slow | (rows["duration_ns"] >= parts * walls[rows["thread"]])
    worked = rest & (shares < IDLE)
    works_ns = np.bincount(spans["thread"][worked], spans["stands_for_ns"][worked], len(walls))
    # What a thread did before it hung says nothing of others.
    others_work = works_ns.sum() - works_ns[rows["thread"]] > _WORKS * int(walls.max(initial=0))
    busy = np.flatnonzero(works_ns > _BUSY * walls)
    judge = _Judge(profile, frames, known, {*rows["thread"].tolist()}, {*busy.tolist()})
    verdicts = [judge.of(place, row) for place, row in zip(places.tolist(), rows)]
    reasons = [judge.reason(row) for row in rows]
    pids = [profile.threads[thread].pid for thread in rows["thread"].tolist()]
    of_pools = frames.pass_through(HANDLERS)[rows["stack"]].tolist()
    columns_of = zip(pids, reasons, verdicts, of_pools)
    for_work = [(pid, reason) for pid, reason, it, of_pool in columns_of if it == _FOR_WORK and not of_pool]
    columns = (places.tolist(), pids, reasons, verdicts, is_whole.tolist(), is_long.tolist(), others_work.tolist())
    for place, pid, reason, verdict, whole, long, works in zip(*columns):
        if verdict == _BEHIND:
            found[place] = long and not works and not any(other == pid and it != "lock" for other, it in for_work)
            shares[place] = LOCK if found[place] and shares[place] == HANDED else shares[place]
        elif verdict == _UNSURE:
            serves = reason in ("child", _OUTPUT) and any(other != pid and it in _SERVES for other, it in for_work)
            found[place] = long and not works and not serves
        elif verdict in (_STUCK, _ASKED):
            found[place] = long and (verdict == _STUCK or not works)
            shares[place] = OTHER if found[place] and shares[place] >= IDLE else shares[place]
        elif verdict == _ANSWERS:
            shares[place] = HANDED
        if whole and not found[place] and verdict in (_FOR_WORK, _UNSURE) and shares[place] < IDLE:
            shares[place] = IDLE
    return found


def _unended(profile: Profile, spans: npt.NDArray[np.void]) -> npt.NDArray[np.intp]:
    """Places of single waits that nobody ended, and that took most of their thread's time."""
    last_ns = np.array([thread.last_ns for thread in profile.threads] or [0], np.int64)[spans["thread"]]
    walls = np.array([thread.wall_ns for thread in profile.threads] or [0], np.int64)[spans["thread"]]
    found = (spans["state"] == ThreadState.OFF_CPU) & (spans["waker"] == 0) & (spans["count"] <= 1)
    found &= spans["start_ns"] + spans["duration_ns"] >= last_ns - _END_NS
    found &= (spans["duration_ns"] >= _PART * walls) & (spans["stands_for_ns"] > 0)
    return np.flatnonzero(found)


class _Judge:
    """Of one profile."""

    def __init__(self, profile: Profile, frames: StackFrames, known: Known, still: set[int], busy: set[int]) -> None:
        self._profile, self._known = profile, known
        self._still, self._busy = still, busy - still  # threads with such a wait, others that work
        self._last = {wait.thread: wait for wait in profile.last_waits}
        looks = profile.lock_holders
        self._holders = dict(zip(looks["thread"].tolist(), (looks["holder"].astype(np.int64) - 1).tolist()))
        self._holders |= {wait.thread: wait.holder for wait in profile.last_waits if wait.holder >= 0}
        self._have_end = {wait.thread for wait in profile.last_waits if wait.has_end}
        self._have_end |= {*looks["thread"][looks["has_end"] > 0].tolist()}
        tasks, end_ns = profile.task_spans, profile.info.duration_ns - _TASK_END_NS
        tasks = tasks[~tasks["is_running"] & (tasks["start_ns"] + tasks["duration_ns"] >= end_ns)]
        self._at_end = [*zip(tasks["task"].tolist(), tasks["reason"].tolist())]  # tasks, and what they wait for
        self._in_python = frames.innermost_python() >= 0
        self._has_frames = frames.innermost_of_best([frame.kind in _FRAMES for frame in frames.frames]) >= 0
        self._functions = {name: frames.have(named(frames, names)) for name, names in _SETS.items()}
        self._outside = _in_other_libraries(frames)

    def of(self, place: int, row: np.void) -> int:
        known, share, stack = self._known, int(self._known.shares[place]), int(row["stack"])
        reason, last = self.reason(row), self._last.get(int(row["thread"]))
        if last is not None and last.kind in ("poll", ANSWER, SIGNAL):
            return _STUCK if last.nobody else self._of_answer(last)
        if share == HANDED or (share == LOCK and known.behind[place]):
            return _BEHIND
        if share >= IDLE:
            return _FOR_WORK
        if share == GPU or reason == "gil" or int(row["thread"]) in self._have_end:
            return _OTHER
        holder = self._holders.get(int(row["thread"]), -1)
        if share == LOCK and holder >= 0:  # who waits for one that is seen to go on is not stuck
            return _OTHER if self._profile.threads[holder].wall_ns and holder not in self._still else _STUCK
        if reason in ("stopped", "file-lock", "kernel-lock"):
            return _STUCK
        if share == LOCK:
            return self._of_lock(place, int(row["thread"]), stack)
        if share == DISK or (share == OTHER and row["task_state"] & 2):
            return _STUCK
        if share == CHILD or reason == _OUTPUT:
            return self._of_child(row, reason)
        if share == NET:
            return _ANSWERS if holder in self._busy else self._of_net(row, reason)
        if reason in _OPENS or self._opens_fifo(row):
            return _UNSURE
        return _OTHER if reason == "device" and not self._object(row).startswith(_TERMINALS) else _FOR_WORK

    def reason(self, row: np.void) -> str:
        """Its word; of who polls pipes that another process writes _OUTPUT."""
        reason, last = reason_text(int(row["reason"])), self._last.get(int(row["thread"]))
        is_output = last is not None and last.kind == "pipe" and (last.held_by or last.nobody)
        return _OUTPUT if reason == "poll" and is_output and not self._is_input(last) else reason

    def _of_answer(self, last: LastWait) -> int:
        """Where tasks of asyncio are known one waits for a socket; else the loop has no timer, which it may be at."""
        if last.kind == SIGNAL:
            return _FOR_WORK
        pid = self._profile.threads[last.thread].pid
        waits = [reason for task, reason in self._at_end if self._profile.tasks[task].pid == pid]
        asks = AWAIT_REASONS.index("socket") in waits if waits else not last.has_end
        return _ASKED if asks else _FOR_WORK

    @staticmethod
    def _is_input(last: LastWait | None) -> bool:
        return last is not None and last.name.startswith("fd 0:")

    def _opens_fifo(self, row: np.void) -> bool:
        last = self._last.get(int(row["thread"]))
        return last is not None and last.kind == "pipe" and not last.name.startswith("fd ")

    def _of_lock(self, place: int, thread: int, stack: int) -> int:
        if self._functions["turns"][stack]:
            return _FOR_WORK
        last = self._last.get(thread)
        is_told = last is not None and (last.held_by or last.nobody)
        if is_told or self._functions["mutex"][stack]:
            return _STUCK
        if self._known.given[place]:
            return _ASKED  # others had it, and gave it
        if not self._has_frames[stack]:  # a main thread rather waits for something than for work
            own = self._profile.threads[thread]
            return _UNSURE if int(own.tid) == int(own.pid) else _FOR_WORK
        return _UNSURE if self._in_python[stack] and not self._outside[stack] else _FOR_WORK

    def _of_net(self, row: np.void, reason: str) -> int:
        name = self._object(row)
        if name.startswith(LISTENING) or self._functions["accepts"][int(row["stack"])]:
            return _FOR_WORK
        if not name:
            return _OTHER if reason == "net" else _FOR_WORK
        if name.startswith("udp "):
            return _UNSURE
        return _ASKED if reason == "net" else _UNSURE

    def _of_child(self, row: np.void, reason: str) -> int:
        if reason == "child":
            return _UNSURE
        if self._functions["writes"][int(row["stack"])]:
            return _STUCK
        last = self._last.get(int(row["thread"]))
        if last is not None and last.nobody:
            return _STUCK
        return _FOR_WORK if last is None or self._is_input(last) else _UNSURE

    def _object(self, row: np.void) -> str:
        last, place = self._last.get(int(row["thread"])), int(row["object"])
        if last is not None and last.kind in ("socket", "device"):
            return last.name.partition(": ")[2]
        return self._profile.objects[place - 1] if place else ""


_SETS = {"mutex": _MUTEXES, "turns": TAKES_TURNS, "accepts": _ACCEPTS, "writes": WRITES}


def named(frames: StackFrames, names: Iterable[str]) -> list[bool]:
    wanted = frozenset(names)
    kinds = (FrameKind.NATIVE, FrameKind.KERNEL)
    return [frame.kind in kinds and frame.name.partition("@")[0] in wanted for frame in frames.frames]


def _in_other_libraries(frames: StackFrames) -> Bools:
    """Whether the innermost native frame of each stack that is not the C library's is of a library beside Python's."""
    of = [origin.library for origin in origins(frames.frames)]
    is_native = [frame.kind == FrameKind.NATIVE for frame in frames.frames]
    is_libc = [
        frame.file.rpartition("/")[2].startswith(("libc.", "libc-", "libpthread", "ld-")) for frame in frames.frames
    ]
    inner = frames.innermost_of_best([native and not libc for native, libc in zip(is_native, is_libc)])
    foreign = [native and not is_runtime(library) and library != STDLIB for native, library in zip(is_native, of)]
    return np.array([*foreign, False])[inner]
