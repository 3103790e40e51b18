"""Rows of work -> the same, with what asyncio's tasks waited for while their event loop had nothing to do.

A loop that serves requests waits in epoll_wait both when nobody asks for anything and when each of its requests waits
for a database: the tasks tell the one from the other. Those count that began and ended while it was recorded, as a task
for a request does, and those that wait in the library of a client, or for a socket in a process that nobody connects to
and that sends as it receives: it asks. Another that lives longer, like what reads a connection, may as well wait for
work.
"""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.rows import BLOCK_BYTES, blocks, picked
from bpfprof.model.spans import How, ThreadState
from bpfprof.model.states import AWAIT_REASONS
from bpfprof.query.code.clients import ask, listen
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools, StackFrames
from bpfprof.query.work.shares import IDLE, NET, SHARES

Floats = npt.NDArray[np.float64]

_LONGEST_PART = 0.5  # of the recording; what is longer is no request
OF_AWAIT = {"sleep": "sleep", "socket": "net", "lock": "lock", "child": "child", "future": "other"}
_ANSWERS_PER_S = 2  # fewer may be signs of life


@dataclass(frozen=True)
class Requests:
    """What the tasks of one process waited for: spans of TASK_SPAN_DTYPE, and the share of each.

    ns: so much of what its event loop, a thread, had to wait was for them. covered_ns: of each of Profile.spans of an
    event loop's waits, in how much of it any of them was waited for.
    """

    spans: npt.NDArray[np.void]
    shares: Ints
    thread: int
    ns: int
    covered_ns: Floats


def with_requests(
    profile: Profile, rows: npt.NDArray[np.void], stack_frames: StackFrames
) -> tuple[npt.NDArray[np.void], tuple[Requests, ...]]:
    """(rows of WORK_DTYPE whose time is the same in all, of each thread as well; what was waited for)"""
    if not len(profile.task_spans) or profile.spans is None or not len(profile.spans):
        return rows, ()
    waits = _told_by_waiters(profile.task_spans, stack_frames.own_depths() > 0)
    chosen = _of_requests(profile, waits, stack_frames)
    if not chosen.any():
        return rows, ()
    pids = np.array([int(task.pid) for task in profile.tasks], np.int64)[waits["task"]]
    by_loop = {}
    for thread in _loops(profile, stack_frames):
        kept = waits[chosen & (pids == int(profile.threads[thread].pid))]
        if len(kept):
            by_loop[thread] = kept
    covered_ns = _covered_ns(profile, {thread: Cover(kept) for thread, kept in by_loop.items()})
    added, served = [], []
    for thread, kept in by_loop.items():
        is_idle = (rows["thread"] == thread) & (rows["share"] == IDLE)
        waited_ns = covered_ns[profile.spans["thread"] == thread].sum()
        moved_ns = min(int(rows["ns"][is_idle].sum()), int(waited_ns))
        if moved_ns:
            served.append(Requests(kept, _shares(kept, stack_frames), thread, moved_ns, covered_ns))
            added.append(_rows(served[-1], rows[is_idle][0]))
            rows["ns"][is_idle] -= _parts(rows["ns"][is_idle], moved_ns)
    return (np.concatenate([rows, *added]) if added else rows), tuple(served)


class Cover:
    """The time in which any of some rows with times went on."""

    def __init__(self, rows: npt.NDArray[np.void]) -> None:
        begin, end = rows["start_ns"], rows["start_ns"] + rows["duration_ns"]
        order = np.argsort(begin, kind="stable")
        begin, reach = begin[order], np.maximum.accumulate(end[order])
        firsts = np.flatnonzero(np.append(True, begin[1:] > reach[:-1]))
        starts, stops = begin[firsts], reach[np.append(firsts[1:], len(reach)) - 1]
        passed = np.cumsum(stops - starts)
        self._times = np.stack([starts, stops], axis=1).ravel()
        self._covered = np.stack([passed - (stops - starts), passed], axis=1).ravel()

    def of(self, start_ns: npt.NDArray[np.int64], duration_ns: npt.NDArray[np.int64]) -> Floats:
        """How much of each of these times it is."""
        until = np.interp(start_ns + duration_ns, self._times, self._covered)
        return np.asarray(until - np.interp(start_ns, self._times, self._covered))


def _covered_ns(profile: Profile, covers: dict[int, Cover]) -> Floats:
    """For each of the profile's spans that are waits of one of these threads how much of it is covered, else 0."""
    spans = profile.spans
    assert spans is not None
    found, is_wait = np.zeros(len(spans)), spans["state"] == ThreadState.OFF_CPU
    places = {thread: np.flatnonzero(is_wait & (spans["thread"] == thread)) for thread in covers}
    if profile.wait_times is None:
        for thread, own in places.items():
            found[own] = covers[thread].of(spans["start_ns"][own], spans["duration_ns"][own])
        return found
    loop_of = np.full(len(spans), -1, np.int64)
    timed_ns = dict.fromkeys(covers, 0)
    for thread, own in places.items():
        loop_of[own] = thread
    for times in blocks(profile.wait_times, BLOCK_BYTES) if covers else ():
        loop = loop_of[times["span"]]
        for thread in np.unique(loop[loop >= 0]).tolist():
            its = picked(times, loop == thread)
            covered_ns = covers[thread].of(its["start_ns"], its["duration_ns"])
            found += np.bincount(its["span"], covered_ns, len(found))
            timed_ns[thread] += int(its["duration_ns"].sum())
    for thread, own in places.items():  # the moments of waits that were only added up are not known
        who, sums = profile.threads[thread], own[spans["how"][own] == How.SUMMED]
        all_ns = covers[thread].of(np.array([who.first_ns]), np.array([who.wall_ns]))[0]
        part = (all_ns - found[own].sum()) / max(1, who.wall_ns - timed_ns[thread])
        found[sums] = spans["duration_ns"][sums] * min(max(part, 0.0), 1.0)
    return found


def _of_requests(profile: Profile, spans: npt.NDArray[np.void], stack_frames: StackFrames) -> Bools:
    """Which of the task spans are waits of a task for a request, in code of the user's own."""
    ends = spans["start_ns"] + spans["duration_ns"]
    first = np.full(len(profile.tasks), np.iinfo(np.int64).max)
    last = np.zeros(len(profile.tasks), np.int64)
    np.minimum.at(first, spans["task"], spans["start_ns"])
    np.maximum.at(last, spans["task"], ends)
    whole = int(last.max()) - int(first.min())
    is_short = (last - first <= _LONGEST_PART * whole) & (first > first.min())
    known = [AWAIT_REASONS.index(word) for word in OF_AWAIT]
    is_own = stack_frames.own_depths() > 0
    counts = is_short[spans["task"]] | ask(stack_frames)[spans["stack"]]
    counts |= _are_of_askers(profile, spans, stack_frames) & (spans["reason"] == AWAIT_REASONS.index("socket"))
    return np.asarray(counts & ~spans["is_running"] & np.isin(spans["reason"], known) & is_own[spans["stack"]])


def _are_of_askers(profile: Profile, spans: npt.NDArray[np.void], stack_frames: StackFrames) -> Bools:
    """Which of the task spans are of processes that ask others, and to which nobody connects; not those that listen."""
    asking = []
    for thread in _loops(profile, stack_frames):
        who = profile.threads[thread]
        often = who.wait_count >= _ANSWERS_PER_S * who.wall_ns / 1e9
        if often and int(who.pid) in profile.info.asks and profile.info.listens.get(int(who.pid)) is False:
            asking.append(int(who.pid))
    of_asker = np.isin(np.array([int(task.pid) for task in profile.tasks], np.int64), asking)
    return np.asarray(of_asker[spans["task"]] & ~listen(stack_frames)[spans["stack"]])


def _told_by_waiters(spans: npt.NDArray[np.void], is_own: Bools) -> npt.NDArray[np.void]:
    """The same task spans; one of a task without code of the user's own is told as one of the task that waits for it.

    wait_for() before 3.12 makes such tasks. is_own: for each stack.
    """
    told = spans.copy()
    borders = np.searchsorted(spans["task"], np.arange(int(spans["task"].max(initial=0)) + 2))
    for place in np.flatnonzero(~is_own[spans["stack"]] & (spans["awaited_by_count"] == 1)).tolist():
        waiter = int(spans["awaited_by"][place])
        if not 0 <= waiter < len(borders) - 1:
            continue
        first, end = borders[waiter : waiter + 2].tolist()
        then = first + int(np.searchsorted(spans["start_ns"][first:end], spans["start_ns"][place], side="right")) - 1
        if then >= first and is_own[spans["stack"][then]]:
            told["stack"][place], told["task"][place] = spans["stack"][then], waiter
    return told


def _loops(profile: Profile, stack_frames: StackFrames) -> list[int]:
    """The thread that runs the event loop, of each process with one: of several it is not known whose a task is."""
    assert profile.spans is not None
    runs = [
        frame.kind == FrameKind.PYTHON
        and (frame.file.endswith("/asyncio/base_events.py") or frame.file.endswith("/asyncio/runners.py"))
        for frame in profile.frames
    ]
    threads = np.unique(profile.spans["thread"][stack_frames.have(runs)[profile.spans["stack"]]]).tolist()
    by_pid: dict[int, list[int]] = {}
    for thread in threads:
        by_pid.setdefault(int(profile.threads[thread].pid), []).append(thread)
    return [found[0] for found in by_pid.values() if len(found) == 1]


def _shares(spans: npt.NDArray[np.void], stack_frames: StackFrames) -> Ints:
    of_reason = np.array([SHARES.index(OF_AWAIT.get(word, "other")) for word in AWAIT_REASONS], np.int64)
    return np.where(ask(stack_frames)[spans["stack"]], NET, of_reason[spans["reason"]])


def _rows(found: Requests, like: np.void) -> npt.NDArray[np.void]:
    """The time shared out over the waits: a row for each stack."""
    keys, which = np.unique(found.spans["stack"].astype(np.int64) << 8 | found.shares, return_inverse=True)
    rows = np.repeat(like, len(keys))
    rows["stack"], rows["share"] = keys >> 8, keys & 0xFF
    rows["lock"] = rows["object"] = 0
    rows["count"] = np.bincount(which, minlength=len(keys))
    waited = np.zeros(len(keys), np.int64)
    np.add.at(waited, which, found.spans["stands_for_ns"])
    rows["ns"] = _parts(waited, found.ns)
    return rows


def _parts(values: npt.NDArray[np.generic], total: int) -> Ints:
    """Whole numbers in the ratio of the values that sum to the total, none larger than its value needs to be."""
    values = values.astype(np.int64)
    ends = np.rint(np.cumsum(values) * (total / max(int(values.sum()), 1))).astype(np.int64)
    return np.diff(ends, prepend=0)
