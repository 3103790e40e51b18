"""Spans of a Profile -> the time of working threads, shared out by what it was spent on.

Left out are the time of threads that wait for work, and waits for another thread of the recording: what that one did in
the meantime is the answer to them, and has rows of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.grouping import group_numbers
from bpfprof.model.profile import Profile
from bpfprof.model.rows import picked
from bpfprof.model.spans import CONDITION_LOCK, SpanFlag, ThreadState
from bpfprof.model.states import reason_number, reason_text
from bpfprof.query.functions import Ints, owner_functions
from bpfprof.query.lock_numbers import had_by_others, numbered_locks
from bpfprof.query.requests import with_requests
from bpfprof.query.semaphores import fought_for
from bpfprof.query.stack_frames import Bools, StackFrames

# What the time of working threads is spent on; IDLE and HANDED are what is left out of it.
SHARES = ("python", "native", "ready", "gil", "lock", "disk", "net", "device", "sleep", "child", "other")
IDLE, HANDED = len(SHARES), len(SHARES) + 1
PYTHON, NATIVE, READY, GIL, LOCK, DISK, NET, DEVICE, SLEEP, CHILD, OTHER = range(len(SHARES))
CPU_TIME, READY_TIME, WAIT_TIME, IDLE_TIME = range(4)

_OF_REASON = {
    **{word: word for word in ("gil", "lock", "disk", "net", "device", "sleep", "child")},
    **{"pipe": "child", "pagefault": "disk", "poll": "net", "kernel-lock": "lock", "file-lock": "lock"},
}
# A thread that waits so much of its time for work, or sleeps, is none that works.
_IDLE_PART = 0.98
_LONG_SLEEP_NS = 500_000_000
_CHILD_REASON, _POLL_REASON = map(reason_number, ("child", "poll"))

# Waits for what another thread does, by (end of the path, functions) of their innermost Python frame: a lock is what
# they are made of. A lock that several want for themselves is acquired in the function that uses it.
_HAND_OVERS = (
    ("threading.py", {"wait", "wait_for", "join", "_wait_for_tstate_lock", "_shutdown"}),
    ("queue.py", {"get", "put", "join"}),
    ("concurrent/futures/_base.py", {"result", "wait", "as_completed"}),
)
_CONDITION_WAIT = ("threading.py", "wait")
_HAND_OVERS_IN_C = (
    *("pthread_cond_", "__pthread_cond_", "pthread_join", "__pthread_clockjoin", "pthread_barrier_wait"),
    *("gomp_barrier_wait", "gomp_team_barrier_wait", "_queue_SimpleQueue_get", "simplequeue_get", "std::condition_var"),
)
# Who waits for a lock of CPython 3.14 or later does so at an address of its own (Python/parking_lot.c).
_PARKING_LOT = ("_PySemaphore_Wait", "_PyParkingLot_Park")
_POOLS = ("multiprocessing/", "concurrent/futures/", "torch/multiprocessing/")  # folders of a path
# `with lock:` of multiprocessing is a fight as one of threads is.
_ACQUIRES = ("multiprocessing/synchronize.py", "__enter__")
# Threads of OpenMP wait for each other; their library has no names where it is stripped.
_OPENMP = ("libgomp", "libomp", "libiomp")

# One row a (thread, stack, state, share, reason, lock, object, waker). share: place in SHARES, IDLE or HANDED; lock: a
# number from 1; object, waker: as in spans.
WORK_DTYPE = np.dtype(
    [
        ("thread", "<i8"),
        ("stack", "<i8"),
        ("state", "<i8"),
        ("share", "<i8"),
        ("reason", "<i8"),
        ("lock", "<i8"),
        ("object", "<i8"),
        ("waker", "<i8"),
        ("count", "<i8"),
        ("ns", "<i8"),
    ]
)

# Waits for locks, columns as in spans; number: of the lock.
LOCK_WAIT_DTYPE = np.dtype(
    [
        ("number", "<i8"),
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("stands_for_ns", "<i8"),
        ("count", "<u4"),
        ("thread", "<u4"),
        ("stack", "<u4"),
        ("waker", "<u4"),
        ("waker_stack", "<u4"),
    ]
)
_KEYS = ("thread", "stack", "state", "share", "reason", "lock", "object", "waker")


@dataclass(frozen=True)
class Work:
    """Rows of WORK_DTYPE; `own`: of each stack the frame of the user's own code, a place in Profile.frames, -1: none.

    locks: (process, address) by the numbers of the rows, from 1 on, that of most waiting first; process 0: several may
    share it; address 0: none is known, but the file or the function that takes it. lock_waits: LOCK_WAIT_DTYPE.
    """

    rows: npt.NDArray[np.void]
    own: Ints
    stack_frames: StackFrames
    locks: tuple[tuple[int, int], ...]
    lock_waits: npt.NDArray[np.void]

    def thread_kinds(self, thread_count: int) -> list[list[int]]:
        """Nanoseconds of each thread by kinds_of()."""
        codes = self.rows["thread"] * 4 + kinds_of(self.rows)
        found: list[list[int]] = sums(codes, self.rows["ns"], thread_count * 4).reshape(-1, 4).tolist()
        return found

    @property
    def working(self) -> npt.NDArray[np.void]:
        """The rows of working time."""
        return picked(self.rows, self.rows["share"] < IDLE)

    def share_ns(self) -> Ints:
        """Of each of SHARES, then what was left out: idle, handed."""
        return sums(self.rows["share"], self.rows["ns"], HANDED + 1)


def kinds_of(rows: npt.NDArray[np.void]) -> Ints:
    """CPU_TIME, READY_TIME, WAIT_TIME (also for other threads) or IDLE_TIME of each row."""
    kinds = np.where(rows["state"] == ThreadState.ON_CPU, CPU_TIME, WAIT_TIME)
    kinds[rows["state"] == ThreadState.RUNQUEUE] = READY_TIME
    kinds[rows["share"] == IDLE] = IDLE_TIME
    return kinds


def sums(codes: Ints, values: Ints, count: int) -> Ints:
    """The sum of the values for each code."""
    found = np.zeros(count, np.int64)
    np.add.at(found, codes, values)
    return found


def work_of(profile: Profile, with_wakers: bool = False) -> Work:
    """with_wakers: rows tell waits apart by who ended them; else `waker` is 0. Raises ValueError without spans."""
    if profile.spans is None:
        raise ValueError("what threads worked at is found in a profile that was built with its spans")
    shown = (profile.spans["flags"] & SpanFlag.HIDDEN == 0) & (profile.spans["stands_for_ns"] > 0)
    shown &= profile.spans["state"] != ThreadState.UNKNOWN
    spans = picked(profile.spans, shown)
    stack_frames = StackFrames(profile.frames, profile.stacks)
    pids = np.array([int(thread.pid) for thread in profile.threads] or [0], np.int64)
    own = stack_frames.own_code()
    functions = owner_functions(profile.frames, own)
    waker_threads = np.array([-1, *(it.thread for it in profile.wakers)], np.int64)[spans["waker"].astype(np.int64)]
    fought = fought_for(spans, spans["state"] == ThreadState.OFF_CPU, waker_threads, stack_frames, functions)
    shares = _shares(profile, spans, stack_frames, fought)
    is_parked = stack_frames.have([frame.name in _PARKING_LOT for frame in profile.frames])
    locks, lock = numbered_locks(spans, shares == LOCK, pids, functions, is_parked)
    is_lock = lock > 0
    lock_waits = np.zeros(int(is_lock.sum()), LOCK_WAIT_DTYPE)
    for name in set(LOCK_WAIT_DTYPE.names or ()) - {"number"}:
        lock_waits[name] = spans[name][is_lock]
    lock_waits["number"] = lock[is_lock]
    reason = np.where(spans["state"] == ThreadState.OFF_CPU, spans["reason"], 0)
    waker = spans["waker"].astype(np.int64) if with_wakers else np.zeros(len(spans), np.int64)
    rows = _summed(spans, {"share": shares, "lock": lock, "reason": reason, "waker": waker})
    _leave_out_sleepers(rows, len(profile.threads), stack_frames.own_depths())
    rows = with_requests(profile, rows, stack_frames, SHARES, IDLE)
    return Work(rows, own, stack_frames, locks, lock_waits)


def _shares(profile: Profile, spans: npt.NDArray[np.void], stack_frames: StackFrames, fought: Bools) -> Ints:
    """A place in SHARES, IDLE or HANDED for each span; fought: those that wait for a semaphore that is a lock."""
    state, reason, stack = spans["state"], spans["reason"].astype(np.int64), spans["stack"]
    number_of = {reason_text(number): number for number in np.flatnonzero(np.bincount(reason)).tolist()}
    of_reason = np.zeros(max(number_of.values(), default=0) + 1, np.int64)
    for word, number in number_of.items():
        of_reason[number] = SHARES.index(_OF_REASON.get(word, "other"))
    shares = of_reason[reason]
    polls, pipes = reason == number_of.get("poll", -1), reason == number_of.get("pipe", -1)
    waits = state == ThreadState.OFF_CPU
    shares[state == ThreadState.RUNQUEUE] = READY
    on_cpu = state == ThreadState.ON_CPU
    shares[on_cpu] = np.where(stack_frames.are_native()[stack[on_cpu]], NATIVE, PYTHON)

    waker = spans["waker"].astype(np.int64)
    thread_of = np.array([-1, *(it.thread for it in profile.wakers)], np.int64)[waker]
    is_timer = np.array([False, *(it.kind == "timer" for it in profile.wakers)])[waker]
    pids = np.array([*(int(it.pid) for it in profile.threads), -1], np.int64)
    is_other = waits & (thread_of >= 0) & (thread_of != spans["thread"])
    is_inside = is_other & (pids[thread_of] == pids[spans["thread"]])
    hand_over, pool = _hand_overs(profile.frames, stack_frames)
    hand_over = hand_over[stack] & ~fought & ~_take_again(spans, stack_frames)
    is_child = polls & _have_file(stack_frames, ("/subprocess.py",))[stack]
    shares[waits & is_child] = CHILD
    asked = is_other & np.isin(shares, (NET, OTHER)) & ~is_child
    handed = asked | (is_inside & (shares == CHILD) & pipes) | (is_other & (hand_over | pool[stack]) & (shares != GIL))
    # Who ends a wait for another thread is not always known, as when that thread ends.
    handed |= (thread_of < 0) & ~is_timer & hand_over & (shares == LOCK)
    shares[handed & waits] = HANDED
    # A wait whose time ran out is a look whether there is something to do, but where others had to give the lock.
    is_given = had_by_others(profile, spans, waits & (shares == LOCK), is_other, pids)
    shares[waits & is_timer & (((shares == LOCK) & ~is_given) | polls)] = IDLE
    shares[waits & (spans["flags"] & SpanFlag.IDLE > 0)] = IDLE
    is_beside = _beside_python(profile, spans, stack_frames)[spans["thread"]]
    shares[waits & is_beside & np.isin(shares, (LOCK, NET, SLEEP, CHILD, OTHER))] = IDLE
    _leave_out_awaited(profile, spans, shares, np.where(waits & (shares == CHILD), thread_of, -1), pids)
    return _without_parked(profile, spans, shares, waits & (waker == 0) & ~is_given)


def _take_again(spans: npt.NDArray[np.void], stack_frames: StackFrames) -> Bools:
    """Whether each span is in Condition.wait(), but not for notify(): it takes the lock of its condition again."""
    path, name = _CONDITION_WAIT
    is_it = [frame.name.rpartition(".")[2] == name and frame.file.endswith(path) for frame in stack_frames.frames]
    in_wait = np.array([*is_it, False])[stack_frames.innermost_python()][spans["stack"]]
    found: Bools = in_wait & (spans["lock"] > 0) & (spans["lock"] & np.uint64(CONDITION_LOCK) == 0)
    return found


def _beside_python(profile: Profile, spans: npt.NDArray[np.void], stack_frames: StackFrames) -> Bools:
    """Kernel threads, and threads of processes without Python where others have it: shells, shims, daemons.

    They wait for work, or for the program that is asked about.
    """
    has_python = np.append(stack_frames.innermost_python() >= 0, False)
    threads = np.unique(spans["thread"][has_python[spans["stack"]]]).tolist()
    of_python = {profile.threads[thread].pid for thread in threads}
    return np.array(
        [it.is_kernel_thread or (bool(of_python) and it.pid not in of_python) for it in profile.threads] or [False]
    )


def _hand_overs(frames: tuple[Frame, ...], stack_frames: StackFrames) -> tuple[Bools, Bools]:
    """(whether each stack waits for what another thread does, whether for what another process of a pool does)"""
    python = [
        any(
            frame.name.rpartition(".")[2] in names and ("/" + frame.file).endswith("/" + tail)
            for tail, names in _HAND_OVERS
        )
        for frame in frames
    ]
    in_python = np.array([*python, False])[stack_frames.innermost_python()]
    in_c = [
        frame.kind == FrameKind.NATIVE
        and (frame.name.startswith(_HAND_OVERS_IN_C) or frame.file.rpartition("/")[2].startswith(_OPENMP))
        for frame in frames
    ]
    tail, name = _ACQUIRES
    acquires = [frame.file.endswith(tail) and frame.name.rpartition(".")[2] == name for frame in frames]
    in_pool = _have_file(stack_frames, _POOLS) & ~np.array([*acquires, False])[stack_frames.innermost_python()]
    return in_python | stack_frames.have(in_c), in_pool


def _have_file(stack_frames: StackFrames, parts: tuple[str, ...]) -> Bools:
    """Whether the file of each stack's innermost Python frame has one of these in it."""
    marked = [
        frame.kind == FrameKind.PYTHON and any(part in frame.file for part in parts) for frame in stack_frames.frames
    ]
    return np.array([*marked, False])[stack_frames.innermost_python()]


def _leave_out_awaited(profile: Profile, spans: npt.NDArray[np.void], shares: Ints, awaited: Ints, pids: Ints) -> None:
    """The time of processes that another waited for most of it is the time of that wait. awaited: threads, -1: none."""
    walls: dict[int, int] = {}
    for thread in profile.threads:
        walls[thread.pid] = max(walls.get(thread.pid, 0), thread.wall_ns)
    found = awaited >= 0
    waited = zip(pids[awaited[found]].tolist(), spans["stands_for_ns"][found].tolist())
    by_pid: dict[int, int] = {}
    for pid, ns in waited:
        by_pid[pid] = by_pid.get(pid, 0) + ns
    left_out = [pid for pid, ns in by_pid.items() if 2 * ns > walls.get(pid, 0)]
    shares[np.isin(pids[spans["thread"]], left_out) & (shares < IDLE)] = HANDED


def _without_parked(profile: Profile, spans: npt.NDArray[np.void], shares: Ints, unended: Bools) -> Ints:
    """A wait that lasted all the recording is for work: not one for a disk, the GIL or an answer that never came.

    So is one for the end of a child, unless nothing else was done, and no child was recorded.
    """
    wall = np.array([thread.wall_ns for thread in profile.threads] or [0], np.int64)[spans["thread"]]
    parked = unended & (spans["duration_ns"] >= _IDLE_PART * wall)
    others_ns = spans["stands_for_ns"][(shares < IDLE) & ~parked].sum()
    is_alone = len({thread.pid for thread in profile.threads}) == 1
    nothing_else = is_alone and bool(others_ns * 20 < spans["stands_for_ns"].max(initial=0))
    for_child = (spans["reason"] == _CHILD_REASON) & nothing_else
    is_for_work = np.isin(shares, (LOCK, SLEEP, CHILD, OTHER)) | ((shares == NET) & (spans["reason"] == _POLL_REASON))
    shares[parked & is_for_work & ~for_child] = IDLE
    return shares


def _leave_out_sleepers(rows: npt.NDArray[np.void], thread_count: int, own_depths: Ints) -> None:
    """Threads that do nothing but sleep now and then are idle, if others do something.

    They are in any case if they sleep long, in the function that they began with: they look again and again whether
    there is something to do.
    """
    by_thread = sums(rows["thread"] * (HANDED + 1) + rows["share"], rows["ns"], thread_count * (HANDED + 1))
    by_thread = by_thread.reshape(thread_count, HANDED + 1)
    aside = by_thread[:, [SLEEP, IDLE, HANDED]].sum(axis=1)
    sleepers = (aside >= _IDLE_PART * by_thread.sum(axis=1)) & (by_thread[:, SLEEP] > 0)
    busy_ns = by_thread[~sleepers, :IDLE].sum()
    others_work = busy_ns * 10 >= by_thread.sum(axis=1).max(initial=0)
    of_sleepers = sleepers[rows["thread"]] & (rows["state"] == ThreadState.OFF_CPU) & (rows["share"] < IDLE)
    looks = (rows["share"] == SLEEP) & (own_depths[rows["stack"]] <= 1) & (rows["ns"] >= _LONG_SLEEP_NS * rows["count"])
    rows["share"][of_sleepers & (looks | others_work)] = IDLE


def _summed(spans: npt.NDArray[np.void], made: dict[str, Ints]) -> npt.NDArray[np.void]:
    """Rows of WORK_DTYPE; `made`: columns that spans do not have, or have otherwise."""
    columns: dict[str, Ints] = {name: made[name] if name in made else spans[name].astype(np.int64) for name in _KEYS}
    first, codes = group_numbers(columns.values())
    found = np.zeros(len(first), WORK_DTYPE)
    for name, column in columns.items():
        found[name] = column[first]
    for name, of_spans in (("count", "count"), ("ns", "stands_for_ns")):
        found[name] = sums(codes, spans[of_spans].astype(np.int64), len(first))
    return found
