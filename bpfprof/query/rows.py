"""A Profile and its work -> time by function, line, file, library, thread, process, container, reason or lock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import Frame
from bpfprof.model.profile import Profile
from bpfprof.model.states import reason_text
from bpfprof.query.containers import container_label
from bpfprof.query.functions import Ints, function_of_frames, owner_frames
from bpfprof.query.origins import origins
from bpfprof.query.work import IDLE_TIME, LOCK, WAIT_TIME, Work, kinds_of, sums

OF_FRAMES = ("function", "line", "file", "library")
OF_THREADS = ("thread", "process", "container")
ROW_GROUPINGS = (*OF_FRAMES, *OF_THREADS, "reason", "lock")


@dataclass(frozen=True)
class Row:
    """Nanoseconds of one group. total: in stacks that have it anywhere, own: in those that end in it.

    frame: one of it where groups are of frames, else None. reasons: of its own waits, most first.
    """

    name: str
    frame: Frame | None
    own_ns: tuple[int, int, int]  # CPU, ready, wait
    total_ns: tuple[int, int, int]
    count: int
    reasons: dict[str, int] = field(default_factory=dict)


def rows_by(profile: Profile, work: Work, by: str) -> list[Row]:
    """Those with most time of their own first; of threads that wait for work the waits are left out."""
    rows = work.rows[kinds_of(work.rows) != IDLE_TIME]
    names, of_row, frame_groups, frames = _groups(profile, work, rows, by)
    state = kinds_of(rows)
    known = of_row >= 0
    own = sums(of_row[known] * 3 + state[known], rows["ns"][known], len(names) * 3).reshape(-1, 3)
    total = own if frame_groups is None else _totals(profile, work, rows, state, frame_groups, len(names))
    counts = sums(of_row[known], rows["count"][known], len(names))
    reasons: dict[int, Counter[str]] = {}
    waits = known & (state == WAIT_TIME)
    for group, reason, ns in zip(of_row[waits].tolist(), rows["reason"][waits].tolist(), rows["ns"][waits].tolist()):
        reasons.setdefault(group, Counter())[reason_text(reason) or "unknown"] += ns
    order = np.lexsort((-total.sum(axis=1), -own.sum(axis=1)))
    return [
        Row(
            names[group],
            frames[group] if frames else None,
            (int(own[group, 0]), int(own[group, 1]), int(own[group, 2])),
            (int(total[group, 0]), int(total[group, 1]), int(total[group, 2])),
            int(counts[group]),
            dict(reasons.get(group, Counter()).most_common()),
        )
        for group in order.tolist()
        if total[group].any()
    ]


def _groups(
    profile: Profile, work: Work, rows: npt.NDArray[np.void], by: str
) -> tuple[list[str], Ints, Ints | None, list[Frame]]:
    """(names, the group of each row or -1, that of each frame if groups are of frames, a frame of each group then)"""
    if by in OF_FRAMES:
        of_frame, names, frames = _frame_groups(profile, by)
        owners = np.array(owner_frames(profile.frames, profile.stacks), np.int64)
        return names, np.append(of_frame, -1)[owners[rows["stack"]]], of_frame, frames
    if by in OF_THREADS:
        words = {
            "thread": [f"{thread.thread_name} ({thread.tid})" for thread in profile.threads],
            "process": [f"{thread.process_name} ({thread.pid})" for thread in profile.threads],
            "container": [container_label(thread) for thread in profile.threads],
        }[by]
        names, numbers = _numbered(words)
        return names, numbers[rows["thread"]], None, []
    if by == "lock":
        names = [f"#{number}" for number in range(1, len(work.locks) + 1)]
        return names, np.where(rows["share"] == LOCK, rows["lock"], 0) - 1, None, []
    names, numbers = _numbered([reason_text(reason) for reason in rows["reason"].tolist()])
    return names, np.where(rows["reason"] > 0, numbers, -1), None, []


def _frame_groups(profile: Profile, by: str) -> tuple[Ints, list[str], list[Frame]]:
    if by == "library":
        keys: list[object] = [origin.library for origin in origins(profile.frames)]
    elif by == "file":
        keys = [frame.file for frame in profile.frames]
    else:
        same = function_of_frames(profile.frames).tolist()
        keys = [(number, frame.line if by == "line" else 0) for number, frame in zip(same, profile.frames)]
    first: dict[object, int] = {}
    frames: list[Frame] = []
    of_frame = []
    for key, frame in zip(keys, profile.frames):
        if key and key not in first:
            first[key] = len(frames)
            frames.append(frame)
        of_frame.append(first.get(key, -1))
    names = [str(key) for key in first] if by in ("library", "file") else [frame.name for frame in frames]
    return np.array(of_frame, np.int64), names, frames


def _numbered(words: list[str]) -> tuple[list[str], Ints]:
    first: dict[str, int] = {}
    numbers = np.array([first.setdefault(word, len(first)) for word in words], np.int64)
    return [*first], numbers


def _totals(profile: Profile, work: Work, rows: npt.NDArray[np.void], state: Ints, of_frame: Ints, count: int) -> Ints:
    """Nanoseconds of each group by state: of stacks that have it anywhere."""
    of_stack = sums(rows["stack"] * 3 + state, rows["ns"], len(profile.stacks) * 3).reshape(-1, 3)
    frames = work.stack_frames
    groups = of_frame[frames.flat]
    pairs = np.unique(frames.stack_of[groups >= 0] * count + groups[groups >= 0])
    stacks, group = np.divmod(pairs, max(count, 1))
    found = np.zeros((count, 3), np.int64)
    np.add.at(found, group, of_stack[stacks])
    return found
