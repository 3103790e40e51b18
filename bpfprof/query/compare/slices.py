"""Profile with spans -> the time of functions, threads or reasons in equal slices of the recording.

How much a figure differs from slice to slice tells how far it can be off by chance (`query/compare/differences.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.rows import picked
from bpfprof.model.single import longest_and_last, single_pieces
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.model.states import reason_text
from bpfprof.query.code.folded_names import role_name
from bpfprof.query.code.functions import function_name, owner_frames
from bpfprof.query.code.libraries import library_groups
from bpfprof.query.code.origins import KERNEL, origins

Key = tuple[str, str, int]  # name, file, line; empty where the grouping does not look at it
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

GROUPINGS = ("function", "line", "file", "library", "thread", "process", "reason")
STATES = (ThreadState.ON_CPU, ThreadState.OFF_CPU)
SLICE_COUNT = 64
_MOST_GROUPS = 5_000  # with most time: the others are counted
_MOST_HELD = 1 << 20  # cells
_STUCK = 0.98  # of a thread's time in one wait: it did not work


@dataclass(frozen=True)
class Slices:
    """Nanoseconds. times: (keys, STATES, own or total, slices). work_ns: of all threads that work, (slices).

    Work is time on a CPU and in waits, but for those of threads that have nothing to do. The run queue is none: it
    depends on what else the machine does. stuck_threads: that sat in one wait and are left out. left_out: groups.
    """

    keys: tuple[Key, ...]
    times: Floats
    work_ns: Floats
    period_ns: float  # from sample to sample
    stuck_threads: int = 0
    left_out: int = 0


@dataclass(frozen=True)
class _Groups:
    """units: of spans their stacks, threads or reasons, as numbers. owners: for each of these the group whose own time
    it is, -1: none. members: all groups whose total time it is part of."""

    units: Callable[[npt.NDArray[np.void]], Ints]
    keys: Sequence[Key]
    owners: Sequence[int]
    members: Sequence[Iterable[int]]


def sliced(profile: Profile, by: str, merge: str = "none") -> Slices:
    """by: one of GROUPINGS. merge: of threads, as query.merging has it; those of a role by names without digits."""
    assert profile.spans is not None
    longest_ns, end_ns = longest_and_last(profile)
    is_stuck = _stuck_threads(profile, longest_ns)
    works = _works(profile, profile.spans, is_stuck)
    begin, end = (int(profile.spans["start_ns"][works].min()), int(end_ns[works].max())) if works.any() else (0, 1)
    edges = begin + np.arange(SLICE_COUNT + 1) * (end - begin) // SLICE_COUNT
    groups = _groups(profile, by, merge)
    work_ns, found = np.zeros(SLICE_COUNT), _Cells()
    # What pieces of a span have in common.
    first_cell = groups.units(profile.spans) * 2 * SLICE_COUNT
    first_cell += (profile.spans["state"] == ThreadState.OFF_CPU) * SLICE_COUNT
    is_shown = profile.spans["flags"] & SpanFlag.HIDDEN == 0
    for pieces in single_pieces(profile):
        pieces = picked(pieces, works[pieces["span"]] & (pieces["duration_ns"] > 0))
        of_piece, place, overlap = cut_at(pieces, edges)
        work_ns += np.bincount(place, overlap, SLICE_COUNT)
        span, part = pieces["span"].astype(np.intp), pieces["stands_for_ns"] / pieces["duration_ns"]
        found.add(first_cell[span][of_piece] + place, overlap * (part * is_shown[span])[of_piece])
    cells, ns = found.sums()
    times = _times(*np.divmod(cells, 2 * SLICE_COUNT), ns, groups)
    used = np.flatnonzero(times.any(axis=(1, 2, 3)))
    chosen = used[np.argsort(-times[used, :, 1].sum(axis=(1, 2)), kind="stable")][:_MOST_GROUPS]
    keys = tuple(groups.keys[group] for group in chosen.tolist())
    period_ns = 1e9 / max(1, profile.info.rate_hz)
    return Slices(keys, times[chosen], work_ns, period_ns, int(is_stuck.sum()), len(used) - len(chosen))


class _Cells:
    """Numbers with nanoseconds, added up now and then."""

    def __init__(self) -> None:
        self._cells, self._ns, self._held, self._most = [np.zeros(0, np.int64)], [np.zeros(0)], 0, _MOST_HELD

    def add(self, cells: Ints, ns: Floats) -> None:
        self._cells.append(cells)
        self._ns.append(ns)
        self._held += len(cells)
        if self._held > self._most:
            cells, ns = self.sums()
            self._cells, self._ns, self._held, self._most = [cells], [ns], len(cells), _MOST_HELD + 2 * len(cells)

    def sums(self) -> tuple[Ints, Floats]:
        """(each number once, in their order; its nanoseconds)"""
        cells, which = np.unique(np.concatenate(self._cells), return_inverse=True)
        return cells, np.bincount(which, np.concatenate(self._ns), len(cells)).astype(np.float64)


def _works(profile: Profile, spans: npt.NDArray[np.void], is_stuck: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which spans are work."""
    is_shown = np.array([thread.wall_ns > 0 for thread in profile.threads] or [False]) & ~is_stuck
    works = is_shown[spans["thread"]] & np.isin(spans["state"], STATES) & (spans["duration_ns"] > 0)
    return np.asarray(works & (spans["flags"] & SpanFlag.IDLE == 0))


def working_spans(profile: Profile) -> tuple[npt.NDArray[np.void], float]:
    """(the spans whose time is compared, those that are alike maybe as one; nanoseconds of work)."""
    assert profile.spans is not None
    is_stuck = _stuck_threads(profile, longest_and_last(profile)[0])
    spans = picked(profile.spans, _works(profile, profile.spans, is_stuck))
    return picked(spans, spans["flags"] & SpanFlag.HIDDEN == 0), float(spans["duration_ns"].sum())


def _stuck_threads(profile: Profile, longest_ns: Ints) -> npt.NDArray[np.bool_]:
    """longest_ns: for each of Profile.spans."""
    assert profile.spans is not None
    longest = np.zeros(max(1, len(profile.threads)), np.int64)
    waits = np.flatnonzero(profile.spans["state"] == ThreadState.OFF_CPU)
    np.maximum.at(longest, profile.spans["thread"][waits], longest_ns[waits])
    return np.asarray(longest > _STUCK * np.array([max(1, thread.wall_ns) for thread in profile.threads] or [1]))


def cut_at(spans: npt.NDArray[np.void], edges: Ints) -> tuple[Ints, Ints, Floats]:
    """(place of the span, slice, nanoseconds of the span in it): a row for each slice that a span is in.

    Slices are from edge to edge, and no span of any length goes beyond the first and the last one.
    """
    start, end = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    first = np.searchsorted(edges, start, side="right") - 1
    counts = np.searchsorted(edges, end, side="left") - first
    span = np.repeat(np.arange(len(spans)), counts)
    place = np.arange(len(span)) - np.repeat(np.cumsum(counts) - counts, counts) + first[span]
    overlap = np.minimum(end[span], edges[place + 1]) - np.maximum(start[span], edges[place])
    return span, place, overlap.astype(np.float64)


def _times(unit: Ints, cell: Ints, ns: Floats, groups: _Groups) -> Floats:
    """As Slices.times, of all groups."""
    shape = (len(groups.keys), 2 * SLICE_COUNT)
    owner = np.array(groups.owners, np.int64)[unit]
    owned = owner >= 0
    own = np.bincount(owner[owned] * shape[1] + cell[owned], ns[owned], shape[0] * shape[1])
    members = [sorted(each) for each in groups.members]
    counts = np.array([len(each) for each in members], np.int64)
    flat = np.array([group for each in members for group in each], np.int64)
    # For each row all members of its unit, which stand together in `flat`.
    row = np.repeat(np.arange(len(unit)), counts[unit])
    before = np.repeat(np.cumsum(counts[unit]) - counts[unit], counts[unit])
    member = flat[np.arange(len(row)) - before + (np.cumsum(counts) - counts)[unit][row]]
    total = np.bincount(member * shape[1] + cell[row], ns[row], shape[0] * shape[1])
    return np.stack([each.reshape(shape[0], 2, SLICE_COUNT) for each in (own, total)], axis=2)


def _groups(profile: Profile, by: str, merge: str) -> _Groups:
    if by in ("thread", "process"):
        name_of = {"none": lambda name: name, "role": role_name}.get(merge) if by == "thread" else None
        names = [(each.process_name, name_of(each.thread_name) if name_of else "", 0) for each in profile.threads]
        keys, numbers = _numbered(names)
        return _Groups(lambda spans: spans["thread"].astype(np.int64), keys, numbers, [[number] for number in numbers])
    if by == "reason":
        assert profile.spans is not None
        reasons = np.unique(_reasons(profile.spans))
        keys, numbers = _numbered([(reason_text(reason) or "on a CPU", "", 0) for reason in reasons.tolist()])
        return _Groups(
            lambda spans: np.searchsorted(reasons, _reasons(spans)), keys, numbers, [[number] for number in numbers]
        )
    if by == "library":
        _, firsts = library_groups(profile)
        keys, numbers = _numbered([(each.library, "", 0) if each.library else None for each in origins(profile.frames)])
        owners = [numbers[frame] if frame >= 0 else -1 for frame in firsts]
    else:
        keys, numbers = _numbered([frame_key(frame, by) for frame in profile.frames])
        found = owner_frames(profile.frames, profile.stacks)
        owners = [numbers[frame] if frame >= 0 else -1 for frame in found]
    members = [{numbers[frame] for frame in stack} - {-1} for stack in profile.stacks]
    return _Groups(lambda spans: spans["stack"].astype(np.int64), keys, owners, members)


def _reasons(spans: npt.NDArray[np.void]) -> Ints:
    """0 of what is no wait."""
    return np.where(spans["state"] == ThreadState.OFF_CPU, spans["reason"], 0).astype(np.int64)


def frame_key(frame: Frame, by: str) -> Key | None:
    """None of marks. Native code has the name of its object alone: it is often elsewhere on another machine."""
    if frame.kind == FrameKind.PYTHON:
        name, file = frame.name, frame.file
    elif frame.kind in (FrameKind.NATIVE, FrameKind.INLINED):
        file = frame.file.rsplit("/", 1)[-1]
        name = function_name(frame)
    elif frame.kind == FrameKind.KERNEL:
        name, file = frame.name, f"[{KERNEL}]"
    else:
        return None
    return (name, file, frame.line * (by == "line")) if by != "file" else ("", file, 0)


def _numbered(keys: Sequence[Key | None]) -> tuple[list[Key], list[int]]:
    """(each once, of each its place in them or -1)."""
    numbers: dict[Key, int] = {}
    places = [-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys]
    return list(numbers), places
