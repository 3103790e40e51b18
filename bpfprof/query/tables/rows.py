"""A Profile and its work -> rows of time by what it was spent in: functions, libraries, threads, reasons, wakers ..."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.known.patterns import Pattern
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.grouping import sums_by
from bpfprof.model.profile import Profile, ThreadTime, Waker
from bpfprof.model.states import AWAIT_REASONS, ThreadState, reason_text
from bpfprof.query.code.functions import Ints, function_name, function_of_frames, owner_frames
from bpfprof.query.code.libraries import library_groups
from bpfprof.query.code.operators import find_operators
from bpfprof.query.code.origins import origins
from bpfprof.query.tables.choices import OF_FRAMES, OF_THREADS
from bpfprof.query.tables.merging import MergedThreads
from bpfprof.query.threads.containers import container_label
from bpfprof.query.threads.tasks import group_tasks
from bpfprof.query.waits.chains import waker_name
from bpfprof.query.waits.lock_holders import LockWaits, lock_waits
from bpfprof.query.work.shares import GPU, LOCK, SHARES, SPIN
from bpfprof.query.work.table import IDLE_TIME, WAIT_TIME, Work, kinds_of

_FUNCTIONS = (FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.INLINED, FrameKind.KERNEL)


@dataclass(frozen=True)
class Row:
    """Nanoseconds of one group. total: in stacks that have it anywhere, own: in those that end in it.

    frame: one of it where groups are of frames, else None; of operators the line of the program that called it for most
    of its own time. reasons: of its own waits, most first. lock: of groups of locks. worker: of processes, as
    ThreadTime has it. waited_ns: of its own waits what was on a CPU. Of asyncio tasks it is the time that they were
    running, ready and suspended, and how many there are.
    """

    name: str
    frame: Frame | None
    own_ns: tuple[int, int, int]  # CPU, ready, wait
    total_ns: tuple[int, int, int]
    count: int
    reasons: dict[str, int] = field(default_factory=dict)
    lock: LockWaits | None = None
    worker: str = ""
    waited_ns: int = 0


def rows_by(
    profile: Profile,
    work: Work,
    by: str,
    threads: MergedThreads | None = None,
    with_idle: bool = False,
    operators: Sequence[Pattern] = (),
) -> list[Row]:
    """Those with most time of their own first. by: one of ROW_GROUPINGS; for wakers the work tells them apart.

    threads: what rows of threads and processes are of, else each by itself. Of threads that wait for work the waits
    are left out unless with_idle. operators: beside those that are known.
    """
    if by == "task":
        return _task_rows(profile)
    rows = work.rows if with_idle else work.rows[kinds_of(work.rows) != IDLE_TIME]
    names, of_row, frame_groups, frames = (
        _operator_groups(profile, work, rows, operators)
        if by == "operator"
        else _groups(profile, work, rows, by, threads)
    )
    state = np.minimum(kinds_of(rows), WAIT_TIME)
    known = of_row >= 0
    own = sums_by(of_row[known] * 3 + state[known], rows["ns"][known], len(names) * 3).reshape(-1, 3)
    total = own if frame_groups is None else _totals(profile, work, rows, state, frame_groups, len(names))
    on_cpu = known & (rows["state"] == ThreadState.ON_CPU) & (state == WAIT_TIME)
    waited_ns = sums_by(of_row[on_cpu], rows["ns"][on_cpu], len(names))
    counts = sums_by(of_row[known], rows["count"][known], len(names))
    reasons: dict[int, Counter[str]] = {}
    waits = known & (state == WAIT_TIME)
    for group, word, ns in zip(of_row[waits].tolist(), _wait_words(rows[waits]), rows["ns"][waits].tolist()):
        reasons.setdefault(group, Counter())[word or "unknown"] += ns
    order = np.lexsort((-total.sum(axis=1), -own.sum(axis=1)))
    process_threads = (threads.threads if threads else profile.threads) if by == "process" else ()
    workers = {_process_name(thread): thread.worker_name for thread in process_threads}
    locks = {f"#{lock.number}": lock for lock in (lock_waits(profile, work) if by == "lock" else ())}
    return [
        Row(
            names[group],
            frames[group] if frames else None,
            (int(own[group, 0]), int(own[group, 1]), int(own[group, 2])),
            (int(total[group, 0]), int(total[group, 1]), int(total[group, 2])),
            int(counts[group]),
            dict(reasons.get(group, Counter()).most_common()),
            locks.get(names[group]),
            workers.get(names[group], ""),
            int(waited_ns[group]),
        )
        for group in order.tolist()
        if total[group].any()
    ]


def sorted_rows(rows: list[Row], by: str) -> list[Row]:
    """By one of SORTS, most first, names in their order; rows that are alike in it stay as they are."""
    if by == "name":
        return sorted(rows, key=lambda row: row.name)
    if by in ("own", "total", "count"):
        return sorted(rows, key=lambda row: -{"own": sum(row.own_ns), "total": sum(row.total_ns)}.get(by, row.count))
    place = ("cpu", "ready", "wait").index(by)
    return sorted(rows, key=lambda row: (-row.own_ns[place], -row.total_ns[place]))


def _groups(
    profile: Profile, work: Work, rows: npt.NDArray[np.void], by: str, merged: MergedThreads | None
) -> tuple[list[str], Ints, Ints | None, list[Frame | None]]:
    """(names, the group of each row or -1, that of each frame if groups are of frames, a frame of each group then)"""
    if by in OF_FRAMES:
        of_frame, names, frames = _frame_groups(profile, by)
        found = library_groups(profile)[1] if by == "library" else owner_frames(profile.frames, profile.stacks)
        owners = np.array(found, np.int64)
        return names, np.append(of_frame, -1)[owners[rows["stack"]]], of_frame, frames
    if by in OF_THREADS:
        merged = None if by == "container" else merged
        threads = merged.threads if merged else profile.threads
        words = {
            "thread": [_thread_name(thread) for thread in threads],
            "process": [*map(_process_name, threads)],
            "container": [container_label(thread) for thread in threads],
        }[by]
        names, numbers = _numbered(words)
        return names, numbers[merged.group_of[rows["thread"]] if merged else rows["thread"]], None, []
    if by == "waker":
        pids = {waker.pid for waker in profile.wakers if waker.kind == "thread"} | {
            each.pid for each in profile.threads
        }
        names = ["not known", *(_waker_name(waker, profile, len(pids) > 1) for waker in profile.wakers)]
        return names, np.where(rows["reason"] > 0, rows["waker"], -1), None, []
    if by == "lock":
        names = [f"#{number}" for number in range(1, len(work.locks) + 1)]
        return names, np.where(rows["share"] == LOCK, rows["lock"], 0) - 1, None, []
    words = _wait_words(rows)
    names, numbers = _numbered(words)
    return names, np.where(np.array([*map(bool, words)], np.bool_), numbers, -1), None, []


def _wait_words(rows: npt.NDArray[np.void]) -> list[str]:
    """For each row what it waited for, "" where it did not; of waits that may be on a CPU the word of their share."""
    of_share = {GPU: SHARES[GPU], SPIN: SHARES[SPIN]}
    pairs = rows[["reason", "share"]].tolist()
    return [of_share.get(share) or (reason_text(reason) if reason else "") for reason, share in pairs]


def _frame_groups(profile: Profile, by: str) -> tuple[Ints, list[str], list[Frame | None]]:
    if by == "library":
        keys: list[object] = [origin.library for origin in origins(profile.frames)]
    elif by == "file":
        keys = [frame.file for frame in profile.frames]
    else:
        same = function_of_frames(profile.frames).tolist()
        keys = [(number, frame.line if by == "line" else 0) for number, frame in zip(same, profile.frames)]
    first: dict[object, int] = {}
    frames: list[Frame | None] = []
    of_frame = []
    for key, frame in zip(keys, profile.frames):
        if frame.kind not in _FUNCTIONS:
            of_frame.append(-1)
            continue
        if key and key not in first:
            first[key] = len(frames)
            frames.append(frame)
        of_frame.append(first.get(key, -1))
    names = (
        [str(key) for key in first] if by in ("library", "file") else [function_name(each) for each in frames if each]
    )
    return np.array(of_frame, np.int64), names, frames


def _operator_groups(
    profile: Profile, work: Work, rows: npt.NDArray[np.void], patterns: Sequence[Pattern]
) -> tuple[list[str], Ints, Ints, list[Frame | None]]:
    """As _groups(), frames being those of the program that called them for most of the time."""
    found = find_operators(profile.frames, work.stack_frames, patterns)
    of_row = np.append(found.of_frame, -1)[found.owner[rows["stack"]]]
    is_python = [frame.kind == FrameKind.PYTHON for frame in profile.frames]
    caller = work.own[rows["stack"]]
    known = np.flatnonzero((of_row >= 0) & np.array([*is_python, False])[caller])
    count = len(profile.frames)
    pairs, of_pair = np.unique(of_row[known] * count + caller[known], return_inverse=True)
    ns = sums_by(of_pair, rows["ns"][known], len(pairs))
    frames: list[Frame | None] = [None] * len(found.names)
    for pair in pairs[np.argsort(ns, kind="stable")].tolist():  # that with most time last
        frames[pair // count] = profile.frames[pair % count]
    return found.names, of_row, found.of_frame, frames


def _thread_name(thread: ThreadTime) -> str:
    """`worker_0 (5983)`, `worker_0..7 (8 threads)`; of several processes with their name."""
    is_of_several = thread.process_count > 1
    return f"{thread.process_name}: " * is_of_several + f"{thread.thread_name} ({thread.thread_id})"


def _process_name(thread: ThreadTime) -> str:
    return f"{thread.process_name} ({thread.process_id})"


def _waker_name(waker: Waker, profile: Profile, with_process: bool) -> str:
    name = waker_name(waker, profile.threads)
    has_process = with_process and waker.kind == "thread"
    return f"{name} of {waker.process_name or '?'} ({waker.pid})" if has_process else name


def _task_rows(profile: Profile) -> list[Row]:
    found = []
    for group in group_tasks(profile):
        frame = profile.frames[group.function] if group.function >= 0 else None
        reasons: Counter[str] = Counter()
        for (reason, _), ns in group.places.items():
            reasons.update({AWAIT_REASONS[reason]: ns} if AWAIT_REASONS[reason] != "ready" else {})
        times = (group.running_ns, group.ready_ns, group.suspended_ns)
        name = f"tasks of {function_name(frame)}" if frame else group.name
        found.append(Row(name, frame, times, times, len(group.tasks), dict(reasons.most_common())))
    return sorted(found, key=lambda row: -sum(row.own_ns))


def _numbered(words: list[str]) -> tuple[list[str], Ints]:
    first: dict[str, int] = {}
    numbers = np.array([first.setdefault(word, len(first)) for word in words], np.int64)
    return [*first], numbers


def _totals(profile: Profile, work: Work, rows: npt.NDArray[np.void], state: Ints, of_frame: Ints, count: int) -> Ints:
    """Nanoseconds of each group by state: of stacks that have it anywhere."""
    of_stack = sums_by(rows["stack"] * 3 + state, rows["ns"], len(profile.stacks) * 3).reshape(-1, 3)
    frames = work.stack_frames
    groups = of_frame[frames.flat]
    pairs = np.unique(frames.stack_of[groups >= 0] * count + groups[groups >= 0])
    stacks, group = np.divmod(pairs, max(count, 1))
    found = np.zeros((count, 3), np.int64)
    np.add.at(found, group, of_stack[stacks])
    return found
