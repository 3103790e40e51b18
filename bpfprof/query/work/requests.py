"""Rows of work -> the same, with what asyncio's tasks waited for while their event loop had nothing to do.

A loop that serves requests waits in epoll_wait both when nobody asks for anything and when each of its requests waits
for a database: the tasks tell the one from the other. Those count that began and ended while it was recorded, as a task
for a request does, and those that wait in the library of a client, or for a socket in a process that nobody connects to
and that sends as it receives: it asks. Another that lives longer, like what reads a connection, may as well wait for
work.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.model.states import AWAIT_REASONS, reason_number
from bpfprof.query.code.clients import ask, listen
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools, StackFrames
from bpfprof.query.work.shares import IDLE, NET, SHARES

_LONGEST_PART = 0.5  # of the recording; what is longer is no request
_OF_AWAIT = {"sleep": "sleep", "socket": "net", "lock": "lock", "child": "child", "future": "other"}
_ANSWERS_PER_S = 2  # fewer may be signs of life
_REASON_OF_SHARE = np.array(
    [reason_number(share if share in _OF_AWAIT.values() and share != "other" else "unknown") for share in SHARES]
)


@dataclass(frozen=True)
class Requests:
    """What the tasks of one process waited for: spans of TASK_SPAN_DTYPE, and the share of each.

    ns: so much of what its event loop, a thread, had to wait was for them.
    """

    spans: npt.NDArray[np.void]
    shares: Ints
    thread: int
    ns: int


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
    added, served = [], []
    for thread in _loops(profile, stack_frames):
        of_it = chosen & (pids == int(profile.threads[thread].pid))
        spans = profile.spans[(profile.spans["thread"] == thread) & (profile.spans["state"] == ThreadState.OFF_CPU)]
        kept = waits[of_it]
        if not len(kept):
            continue
        is_idle = (rows["thread"] == thread) & (rows["share"] == IDLE)
        moved_ns = min(int(rows["ns"][is_idle].sum()), int(_waited_ns(spans, kept).sum()))
        if moved_ns:
            served.append(Requests(kept, _shares(kept, stack_frames), thread, moved_ns))
            added.append(_rows(served[-1], rows[is_idle][0]))
            rows["ns"][is_idle] -= _parts(rows["ns"][is_idle], moved_ns)
    return (np.concatenate([rows, *added]) if added else rows), tuple(served)


def cut_at_requests(
    spans: npt.NDArray[np.void], is_idle: Bools, served: Sequence[Requests]
) -> tuple[npt.NDArray[np.void], Bools]:
    """(spans, which are idle): an idle one in which requests were waited for is cut into what it was idle and the rest.

    The rest has the stacks of the tasks that waited, in the order of time; where several did, each has its part of it.
    """
    for of_loop in served:
        places = np.flatnonzero(is_idle & (spans["thread"] == of_loop.thread))
        moved = _moved(spans[places], of_loop)
        order = np.argsort(of_loop.spans["start_ns"], kind="stable")
        ends_of_waits = np.cumsum(_parts(of_loop.spans["stands_for_ns"][order], of_loop.ns))
        ends_of_spans = np.cumsum(moved)
        ends = np.unique(np.concatenate([ends_of_waits, ends_of_spans]))
        ends = ends[ends > 0]
        wait = order[np.searchsorted(ends_of_waits, ends)]
        pieces = spans[places[np.searchsorted(ends_of_spans, ends)]]
        part_ns = np.diff(ends, prepend=0)
        whole_ns = pieces["stands_for_ns"].astype(np.float64)
        pieces["duration_ns"] = np.floor(pieces["duration_ns"] * (part_ns / whole_ns))
        pieces["stands_for_ns"], pieces["stack"] = part_ns, of_loop.spans["stack"][wait]
        pieces["reason"] = _REASON_OF_SHARE[of_loop.shares[wait]]
        pieces["flags"] &= ~np.uint8(SpanFlag.IDLE)
        pieces["wait"] = pieces["count"] = 0
        spans, is_idle = _cut(spans, is_idle, places, pieces, np.searchsorted(ends_of_spans, ends))
    return spans, is_idle


def _moved(spans: npt.NDArray[np.void], of_loop: Requests) -> Ints:
    """How much of the time of each idle span was waiting for requests: by when these waited, and that in all."""
    weights = spans["stands_for_ns"].astype(np.int64)
    covered = _waited_ns(spans, of_loop.spans) * (weights / np.maximum(spans["duration_ns"], 1))
    covered = np.minimum(np.floor(covered).astype(np.int64), weights)
    if covered.sum() >= of_loop.ns:
        return _parts(covered, of_loop.ns)
    return np.asarray(covered + _parts(weights - covered, of_loop.ns - int(covered.sum())))


def _cut(
    spans: npt.NDArray[np.void], is_idle: Bools, places: Ints, pieces: npt.NDArray[np.void], of_place: Ints
) -> tuple[npt.NDArray[np.void], Bools]:
    """Spans with the pieces in them, each after what is left of the span that it is of."""
    left = spans.copy()
    for name in ("duration_ns", "stands_for_ns"):
        np.subtract.at(left[name], places[of_place], pieces[name])
    before = np.cumsum(pieces["duration_ns"]) - pieces["duration_ns"]
    first = np.searchsorted(of_place, of_place)
    pieces["start_ns"] = (left["start_ns"] + left["duration_ns"])[places[of_place]] + before - before[first]
    at = places[of_place] + 1
    return np.insert(left, at, pieces), np.insert(is_idle, at, False)


def _of_requests(profile: Profile, spans: npt.NDArray[np.void], stack_frames: StackFrames) -> Bools:
    """Which of the task spans are waits of a task for a request, in code of the user's own."""
    ends = spans["start_ns"] + spans["duration_ns"]
    first = np.full(len(profile.tasks), np.iinfo(np.int64).max)
    last = np.zeros(len(profile.tasks), np.int64)
    np.minimum.at(first, spans["task"], spans["start_ns"])
    np.maximum.at(last, spans["task"], ends)
    whole = int(last.max()) - int(first.min())
    is_short = (last - first <= _LONGEST_PART * whole) & (first > first.min())
    known = [AWAIT_REASONS.index(word) for word in _OF_AWAIT]
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


def _waited_ns(spans: npt.NDArray[np.void], waits: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """How much of each of a thread's spans went by while any task was in one of these waits."""
    begin, end = waits["start_ns"], waits["start_ns"] + waits["duration_ns"]
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    is_first = np.append(True, begin[1:] > reach[:-1])
    firsts = np.flatnonzero(is_first)
    starts, stops = begin[firsts], reach[np.append(firsts[1:], len(reach)) - 1]
    times = np.stack([starts, stops], axis=1).ravel()
    covered = np.stack([np.cumsum(stops - starts) - (stops - starts), np.cumsum(stops - starts)], axis=1).ravel()
    at_begin = np.interp(spans["start_ns"], times, covered)
    at_end = np.interp(spans["start_ns"] + spans["duration_ns"], times, covered)
    return np.asarray(at_end - at_begin)


def _shares(spans: npt.NDArray[np.void], stack_frames: StackFrames) -> Ints:
    of_reason = np.array([SHARES.index(_OF_AWAIT.get(word, "other")) for word in AWAIT_REASONS], np.int64)
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
