"""Spans of a Profile -> the time of its threads, shared out by what it was spent on, as rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.grouping import group_numbers, sums_by
from bpfprof.model.profile import WEIGHT_DTYPE, Profile
from bpfprof.model.rows import Rows, blocks, one_after_another, picked
from bpfprof.model.single import single_pieces
from bpfprof.model.spans import SPAN_DTYPE, SpanFlag, ThreadState
from bpfprof.profile.weights import Sums, weights_of
from bpfprof.query.code.functions import Ints, owner_functions
from bpfprof.query.code.stack_frames import Bools, StackFrames
from bpfprof.query.work.cut_idle import cut_at_requests, cut_pieces
from bpfprof.query.work.executors import Wanted, do_items, wanted_threads
from bpfprof.query.work.left_out import leave_out_sleepers
from bpfprof.query.work.lock_numbers import numbered_locks
from bpfprof.query.work.requests import Requests, with_requests
from bpfprof.query.work.rules import SpanFacts, shares_of_spans
from bpfprof.query.work.semaphores import fought_for
from bpfprof.query.work.shares import GPU, HANDED, IDLE, LOCK, SLEEP, SPIN, work_shares
from bpfprof.query.work.waiting import StackWaits
from bpfprof.query.work.waits import wait_times

CPU_TIME, READY_TIME, WAIT_TIME, IDLE_TIME = range(4)
# Who waits for a lock of CPython 3.14 or later does so at an address of its own (Python/parking_lot.c).
_PARKING_LOT = ("_PySemaphore_Wait", "_PyParkingLot_Park")

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

# Waits for locks that have a row, by thread and time, columns as in spans; number: of the lock.
LOCK_WAIT_DTYPE = np.dtype(
    [
        ("number", "<i8"),
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("stands_for_ns", "<i8"),
        ("thread", "<u4"),
        ("stack", "<u4"),
        ("waker", "<u4"),
        ("waker_stack", "<u4"),
    ]
)
_HANDED_PART = 0.25  # of the time of a thread: then what it waits for others to do is what it is about
_KEYS = ("thread", "stack", "state", "share", "reason", "lock", "object", "waker")


@dataclass(frozen=True)
class Work:
    """Rows of WORK_DTYPE; `own`: for each stack the frame of the user's own code, a place in Profile.frames, -1: none.

    locks: (process, address) by the numbers of the rows, from 1 on, that of most waiting first; process 0: several may
    share it; address 0: none is known, but the file or the function that takes it. lock_waits: LOCK_WAIT_DTYPE.
    idle_spans: whether the row of each of Profile.spans has the share IDLE. Waits of an event loop whose tasks waited
    for requests in the meantime are among them, though their time is not: worked_spans() cuts it out. served: those.
    span_locks: the number of each one's lock, 0: none. stuck: the spans of waits that did not end, and are for no work.
    serve_nobody: for each thread of a process that runs Python whether a library keeps it for itself, and no one waits
    for it.
    """

    rows: npt.NDArray[np.void]
    own: Ints
    stack_frames: StackFrames
    waiting: StackWaits
    locks: tuple[tuple[int, int], ...]
    lock_waits: npt.NDArray[np.void]
    idle_spans: Bools
    span_locks: Ints
    serve_nobody: Bools
    served: tuple[Requests, ...] = ()
    stuck: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, SPAN_DTYPE))
    wanted_threads: Wanted | None = None  # of executors, where these have too few

    def thread_kinds(self, thread_count: int) -> list[list[int]]:
        """Nanoseconds of each thread by kinds_of()."""
        codes = self.rows["thread"] * 4 + kinds_of(self.rows)
        found: list[list[int]] = sums_by(codes, self.rows["ns"], thread_count * 4).reshape(-1, 4).tolist()
        return found

    @property
    def working(self) -> npt.NDArray[np.void]:
        """The rows of working time."""
        return picked(self.rows, self.rows["share"] < IDLE)

    @property
    def working_ns(self) -> int:
        """All of it."""
        return int(self.rows["ns"][self.rows["share"] < IDLE].sum())

    def waiting_cpu_ns(self, thread_count: int) -> list[int]:
        """For each thread the nanoseconds on a CPU in which it only waited: for a GPU, or for others that spin."""
        rows = picked(self.rows, (self.rows["state"] == ThreadState.ON_CPU) & (kinds_of(self.rows) == WAIT_TIME))
        found: list[int] = sums_by(rows["thread"], rows["ns"], thread_count).tolist()
        return found

    def share_ns(self) -> Ints:
        """For each of SHARES, then what was left out: idle, handed."""
        return sums_by(self.rows["share"], self.rows["ns"], HANDED + 1)


def kinds_of(rows: npt.NDArray[np.void]) -> Ints:
    """CPU_TIME, READY_TIME, WAIT_TIME (also for other threads, and on a CPU) or IDLE_TIME of each row."""
    kinds = np.where(rows["state"] == ThreadState.ON_CPU, CPU_TIME, WAIT_TIME)
    kinds[rows["state"] == ThreadState.RUNQUEUE] = READY_TIME
    kinds[np.isin(rows["share"], (GPU, SPIN))] = WAIT_TIME
    kinds[rows["share"] == IDLE] = IDLE_TIME
    return kinds


def work_of(profile: Profile, with_wakers: bool = False) -> Work:
    """with_wakers: rows tell waits apart by who ended them; else `waker` is 0. Raises ValueError without spans."""
    if profile.spans is None:
        raise ValueError("what threads worked at is found in a profile that was built with its spans")
    shown = (profile.spans["flags"] & SpanFlag.HIDDEN == 0) & (profile.spans["stands_for_ns"] > 0)
    shown &= profile.spans["state"] != ThreadState.UNKNOWN
    spans = profile.spans if shown.all() else picked(profile.spans, shown)
    stack_frames = StackFrames(profile.frames, profile.stacks)
    pids = np.array([int(thread.pid) for thread in profile.threads] or [0], np.int64)
    own = stack_frames.own_code()
    functions = owner_functions(profile.frames, own)
    waker_threads = np.array([-1, *(each.thread for each in profile.wakers)], np.int64)[spans["waker"].astype(np.int64)]
    fought = fought_for(spans, spans["state"] == ThreadState.OFF_CPU, waker_threads, stack_frames, functions)
    is_cpu = spans["state"] == ThreadState.ON_CPU
    cpu_ns = sums_by(spans["stack"][is_cpu], spans["stands_for_ns"][is_cpu].astype(np.int64), len(profile.stacks))
    waiting = StackWaits(stack_frames, cpu_ns)
    shares, is_stuck, serve_nobody = shares_of_spans(SpanFacts(profile, spans, stack_frames, waiting, fought))
    in_python = stack_frames.innermost_python() >= 0
    serve_nobody &= np.isin(pids, pids[np.unique(spans["thread"][in_python[spans["stack"]]])])
    serve_nobody[[*np.unique(spans["thread"][is_stuck]).tolist(), *profile.info.at_work]] = False
    is_parked = stack_frames.have([frame.name in _PARKING_LOT for frame in profile.frames])
    locks, lock = numbered_locks(spans, shares == LOCK, pids, functions, is_parked)
    reason = np.where(spans["state"] == ThreadState.OFF_CPU, spans["reason"], 0)
    waker = spans["waker"] if with_wakers else np.zeros(len(spans), np.uint8)
    rows, row_of = _summed(spans, {"share": shares, "lock": lock, "reason": reason, "waker": waker})
    wanted = wanted_threads(profile, rows, stack_frames)
    is_awaited = do_items(stack_frames)[rows["stack"]] & (wanted is not None)
    leave_out_sleepers(rows, len(profile.threads), stack_frames, is_awaited)
    idle = np.zeros(len(profile.spans), np.bool_)
    idle[shown] = (rows["share"] == IDLE)[row_of]
    span_locks = np.zeros(len(profile.spans), np.int64)
    span_locks[shown] = lock
    rows, served = with_requests(profile, rows, stack_frames)
    if profile.info.at_work:
        _put_to_work(rows, np.isin(rows["thread"], [*profile.info.at_work]))
        idle[np.isin(profile.spans["thread"], [*profile.info.at_work])] = False
    return Work(
        rows,
        own,
        stack_frames,
        waiting,
        locks,
        _lock_waits(profile, span_locks),
        idle,
        span_locks,
        serve_nobody,
        served,
        picked(spans, is_stuck),
        wanted,
    )


def _lock_waits(profile: Profile, span_locks: Ints) -> npt.NDArray[np.void]:
    assert profile.spans is not None
    is_lock, found = span_locks > 0, []
    for times in blocks(wait_times(profile)):
        times = picked(times, is_lock[times["span"]])
        rows, spans = np.zeros(len(times), LOCK_WAIT_DTYPE), picked(profile.spans, times["span"])
        for name in ("thread", "stack", "waker", "waker_stack"):
            rows[name] = spans[name]
        rows["number"] = span_locks[times["span"]]
        rows["start_ns"], rows["duration_ns"] = times["start_ns"], times["duration_ns"]
        whole_ns = spans["duration_ns"].astype(np.float64)
        rows["stands_for_ns"] = np.rint(times["duration_ns"] * (spans["stands_for_ns"] / whole_ns))
        found.append(rows)
    return one_after_another(LOCK_WAIT_DTYPE, found)


def worked_spans(profile: Profile, work: Work) -> tuple[npt.NDArray[np.void], Bools]:
    """(spans, which are idle), with the time of the rows: what an event loop waited for requests is cut out of idle."""
    assert profile.spans is not None
    return cut_at_requests(profile.spans, work.idle_spans, work.served)


def worked_single_pieces(profile: Profile, work: Work) -> tuple[npt.NDArray[np.void], Bools, Iterator[Rows]]:
    """(spans, which are idle, the single ones that these are made of as rows of PIECE_DTYPE, some at a time)."""
    assert profile.spans is not None
    # Of what is kept of single ones alone spans need not stay in memory.
    pieces = partial(single_pieces, profile) if profile.pieces is None else partial(blocks, profile.pieces)
    if not work.served:
        return profile.spans, work.idle_spans, pieces()
    return cut_pieces(profile.spans, work.idle_spans, work.served, pieces)


def worked_weights(profile: Profile, work: Work) -> tuple[npt.NDArray[np.void], Bools]:
    """(rows of WEIGHT_DTYPE, which of them are idle)."""
    spans, is_idle = worked_spans(profile, work)
    found = []
    for chosen in (is_idle, ~is_idle):
        sums, at = Sums(WEIGHT_DTYPE), 0
        for part in blocks(spans):
            own = picked(part, chosen[at : at + len(part)] & (part["flags"] & SpanFlag.HIDDEN == 0))
            sums.add(weights_of(own, own["stack"]))
            at += len(part)
        found.append(sums.rows())
    both = np.concatenate(found)
    return both, np.arange(len(both)) < len(found[0])


def _put_to_work(rows: npt.NDArray[np.void], is_own: Bools) -> None:
    """is_own: rows of threads that never wait for work.

    That another thread sleeps is an answer where they wait for what that does, and nothing that they do elsewhere.
    """
    is_work = is_own & (rows["share"] == IDLE)
    rows["share"][is_work] = work_shares(rows["reason"][is_work])
    handed_ns = rows["ns"][is_own & (rows["share"] == HANDED)].sum()
    if handed_ns < _HANDED_PART * rows["ns"][is_own].sum():
        rows["share"][~is_own & (rows["share"] == SLEEP)] = IDLE


def _summed(
    spans: npt.NDArray[np.void], made: dict[str, npt.NDArray[Any]]
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.intp]]:
    """(rows of WORK_DTYPE, the row of each span); `made`: columns that spans do not have, or have otherwise."""
    columns = {name: made[name] if name in made else spans[name] for name in _KEYS}
    first, codes = group_numbers(columns.values())
    found = np.zeros(len(first), WORK_DTYPE)
    for name, column in columns.items():
        found[name] = column[first]
    for name, of_spans in (("count", "count"), ("ns", "stands_for_ns")):
        found[name] = sums_by(codes, spans[of_spans], len(first))
    return found, codes
