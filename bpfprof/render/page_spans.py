"""Profile with its spans -> columns of numbers for the page: time of each thread, and the tree that all stacks make."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.grouping import group_numbers
from bpfprof.model.profile import Profile
from bpfprof.model.reasons import REASONS
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.model.states import reason_text
from bpfprof.model.statuses import Status
from bpfprof.query.code.functions import Ints, owner_functions, wait_owners
from bpfprof.query.work.table import Work, worked_single_pieces
from bpfprof.render.page_rows import BUDGET, HOLDS_GIL, IN_IDLE, IN_TABLE, IS_IDLE, Fewer, Rows, Told

# What the page tells apart by colour and pattern; HIDDEN: not asked for.
KINDS = ("cpu", "ready", "gil", "lock", "io", "sleep", "other", "lost", "hidden")
CPU, READY, GIL, LOCK, IO, SLEEP, OTHER, LOST, HIDDEN = range(len(KINDS))
_KIND_OF_REASON = {reason.word: KINDS.index(reason.look) for reason in REASONS}


@dataclass(frozen=True)
class PageSpans:
    """columns: of spans, of places and of the tree's nodes, by name. bucket_ns: 0 where no spans were merged; is_apart:
    time and what it was spent in are apart, see Fewer.

    A place is a stack of one group of threads; `place_node`: its last node; `place_owner`: the innermost Python frame,
    else native, else kernel one, `place_function`: the same without its line, as in tables of waits; each + 1, 0: none.
    Nodes are in the order of their parents, each after its own. `node_frame`: 0 of the root, then the groups, then the
    frames.
    """

    columns: dict[str, npt.NDArray[np.generic]]
    span_count: int
    bucket_ns: int
    is_apart: bool


def kind_of_reason(reason: str) -> int:
    """The place in KINDS of a wait."""
    return _KIND_OF_REASON.get(reason, OTHER)


def page_spans(profile: Profile, work: Work, group_of: Ints, budget: int = BUDGET) -> PageSpans:
    """group_of: for each thread the group whose stacks stand below one node."""
    return page_spans_of(profile, *page_looks(profile, work, group_of), group_of, budget)


def page_looks(profile: Profile, work: Work, group_of: Ints) -> tuple[Looks, Iterator[npt.NDArray[np.void]]]:
    """What page_spans_of() needs of the profile's spans, which need not stay in memory then."""
    spans, is_idle, singly = worked_single_pieces(profile, work)
    return Looks(spans, is_idle, group_of, len(profile.stacks), has_gaps=not profile.pieces_ns), singly


def page_spans_of(
    profile: Profile, looks: Looks, singly: Iterator[npt.NDArray[np.void]], group_of: Ints, budget: int = BUDGET
) -> PageSpans:
    """page_spans() of a profile that may have lost its spans."""
    fewer = Fewer(profile.info.duration_ns, looks.told, budget, looks.weight_ns, profile.pieces_ns)
    for pieces in singly:
        fewer.add(looks.rows(pieces))
    rows, told = fewer.rows()
    is_used = np.bincount(told.place, minlength=len(looks.places)) > 0
    told = told._replace(place=(np.cumsum(is_used, dtype=np.uint32) - 1)[told.place])
    group, stack = np.divmod(looks.places[is_used], len(profile.stacks) + 1)
    begin = np.searchsorted(told.thread, np.arange(len(profile.threads) + 1, dtype=np.uint32))
    if profile.pieces_ns:  # there is no time between them
        has_rows = np.flatnonzero(np.diff(begin))
        rows["gap"][begin[has_rows]] = [profile.threads[thread].first_ns for thread in has_rows.tolist()]
    columns = _span_columns(rows, told, begin) | _tree(profile, group, stack - 1, group_of)
    return PageSpans(columns, len(columns["kind"]), fewer.bucket_ns, fewer.is_apart)


class Looks:
    """What rows of the page have in common with the spans that they are parts of, or are.

    places: for each of their places its group of threads and its stack, as one number, in their order. has_gaps: each
    row begins and ends where it says, and they are by thread and time; else some are of several moments, in any order.
    """

    def __init__(
        self,
        spans: npt.NDArray[np.void],
        is_idle: npt.NDArray[np.bool_],
        group_of: Ints,
        stack_count: int,
        has_gaps: bool = True,
    ) -> None:
        shown = spans["flags"] & SpanFlag.HIDDEN == 0
        self.weight_ns = int(spans["stands_for_ns"][shown].sum())
        self._is_shown, self._has_gaps = shown, has_gaps
        kind = np.where(shown, _kinds(spans), HIDDEN).astype(np.uint8)
        stack = np.where(shown, spans["stack"].astype(np.int64) + 1, 0)
        places = group_of[spans["thread"].astype(np.int64)] * (stack_count + 1) + stack
        first, place = group_numbers([places])
        self.places = places[first]
        flags = np.where(is_idle, IS_IDLE, 0) | np.where(spans["flags"] & SpanFlag.HOLDS_GIL > 0, HOLDS_GIL, 0)
        is_unheard = (spans["status"] == Status.NOT_SAMPLED) & (spans["stands_for_ns"] > 0)
        in_table = (spans["state"] == ThreadState.OFF_CPU) & ((spans["wait"] > 0) | is_unheard)
        flags |= np.where(in_table, np.where(spans["flags"] & SpanFlag.IDLE > 0, IN_TABLE | IN_IDLE, IN_TABLE), 0)
        told = Told(spans["thread"], place.astype(np.uint32), kind, np.where(shown, flags, 0).astype(np.uint8))
        first, look = group_numbers(told)
        self.told, self._look = told.picked(first), look.astype(np.uint32)
        self._is_gil = self.told.kind == GIL
        self._before = -1, 0  # thread and end of the last row so far

    def rows(self, pieces: npt.NDArray[np.void]) -> Rows:
        """Columns of what comes next, which is at least one."""
        span = pieces["span"].astype(np.intp)
        look, start, duration = self._look[span], pieces["start_ns"].copy(), pieces["duration_ns"].copy()
        gap = np.zeros(len(pieces), np.int64)
        if self._has_gaps:
            thread, ends = self.told.thread[look].astype(np.int64), start + duration
            gap[:] = start - np.where(
                np.diff(thread, prepend=self._before[0]) != 0, 0, np.append(self._before[1], ends[:-1])
            )
            self._before = int(thread[-1]), int(ends[-1])
        return {
            "look": look,
            "holder": pieces["holder"] * self._is_gil[look],
            "gap": gap,
            "duration": duration,
            "weight": pieces["stands_for_ns"] * self._is_shown[span],
            "count": pieces["count"].astype(np.int64),
            "start": start,
        }


def _kinds(spans: npt.NDArray[np.void]) -> npt.NDArray[np.generic]:
    reason = spans["reason"].astype(np.int64)
    numbers = np.flatnonzero(np.bincount(reason)) if len(reason) else np.zeros(0, np.int64)
    of_reason = np.zeros(int(reason.max(initial=0)) + 1, np.uint8)
    for number in numbers.tolist():
        of_reason[number] = kind_of_reason(reason_text(number))
    kinds = of_reason[reason]
    for state, kind in ((ThreadState.ON_CPU, CPU), (ThreadState.RUNQUEUE, READY), (ThreadState.UNKNOWN, LOST)):
        kinds[spans["state"] == state] = kind
    return kinds


def _span_columns(rows: Rows, told: Told, begin: Ints) -> dict[str, npt.NDArray[np.generic]]:
    """begin: for each thread the place of its first row, then the count of all."""
    columns: dict[str, npt.NDArray[np.generic]] = {
        "begin": begin.astype(np.uint32),
        "place": told.place,
        "holder": rows["holder"].astype(np.uint32, copy=False),
        "kind": told.kind,
        "flags": told.flags,
    }
    columns["count"] = np.minimum(rows["count"], 0xFFFFFFFF).astype(np.uint32)
    # What a span speaks for is mostly its own time: of it the difference.
    for name, values in (
        *(("gap", rows["gap"]), ("duration", rows["duration"])),
        ("more", rows["weight"] - rows["duration"]),
    ):
        columns[f"{name}_low"] = (values & 0xFFFFFFFF).astype(np.uint32)
        columns[f"{name}_high"] = (values >> 32).astype(np.int32)
    return columns


def _tree(profile: Profile, groups: Ints, stacks: Ints, group_of: Ints) -> dict[str, npt.NDArray[np.generic]]:
    """The nodes, level by level."""
    lengths = np.fromiter(map(len, profile.stacks), np.int64, len(profile.stacks))
    flat = np.fromiter((frame for stack in profile.stacks for frame in stack), np.int64, int(lengths.sum()))
    starts, lengths = np.append(np.cumsum(lengths) - lengths, 0), np.append(lengths, 0)
    starts, lengths = starts[stacks], lengths[stacks]  # a stack of -1 has no frames
    group_count = int(group_of.max(initial=-1)) + 1
    parents, frames = [np.zeros(1 + group_count, np.int64)], [np.arange(1 + group_count)]
    node, level, count = groups + 1, 0, 1 + group_count
    active = np.flatnonzero(lengths > 0)
    while len(active):
        frame = flat[starts[active] + level]
        first, codes = group_numbers([node[active], frame])
        parents.append(node[active][first])
        frames.append(frame[first] + 1 + group_count)
        node[active] = count + codes
        count, level = count + len(first), level + 1
        active = active[lengths[active] > level]
    owners = np.array(wait_owners(profile.frames, profile.stacks), np.int64)
    functions = owner_functions(profile.frames, owners)
    return {
        "node_parent": np.concatenate(parents).astype(np.uint32),
        "node_frame": np.concatenate(frames).astype(np.uint32),
        "place_node": node.astype(np.uint32),
        "place_owner": (np.append(owners, -1)[stacks] + 1).astype(np.uint32),
        "place_function": (np.append(functions, -1)[stacks] + 1).astype(np.uint32),
    }
