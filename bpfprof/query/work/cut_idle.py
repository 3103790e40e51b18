"""Idle spans of event loops -> the same, cut into what was idle and what requests were waited for, see requests.py.

What was waited for has the stacks of the tasks that waited, in the order of time; where several did, each has its part
of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.grouping import each_once, group_numbers, sums_by
from bpfprof.model.rows import Rows, copied, one_after_another, picked
from bpfprof.model.spans import SPAN_DTYPE, How, SpanFlag
from bpfprof.model.states import reason_number
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools
from bpfprof.query.work.requests import OF_AWAIT, Cover, Floats, Requests
from bpfprof.query.work.shares import SHARES

_REASON_OF_SHARE = np.array(
    [reason_number(share if share in OF_AWAIT.values() and share != "other" else "unknown") for share in SHARES]
)
_Kind = tuple[int, int, int]  # of what is cut out: its span, stack and reason
_Cut = tuple[Ints, Ints, Ints, Ints]  # of each part the place of what it is of, nanoseconds, stack and reason


def cut_at_requests(spans: Rows, is_idle: Bools, served: Sequence[Requests]) -> tuple[Rows, Bools]:
    """(spans, which are idle); spans: Profile.spans. Each part is after what is left of its span."""
    found = []
    for of_loop in served:
        places = np.flatnonzero(is_idle & (spans["thread"] == of_loop.thread))
        weights, lengths = (spans[name][places] for name in ("stands_for_ns", "duration_ns"))
        covered_ns = _covered(of_loop.covered_ns[places], lengths, weights)
        found.append(_Cutting(of_loop, float(covered_ns.sum()), int(weights.sum())).cut(places, covered_ns, weights))
    if not found:
        return spans, is_idle
    place, ns, stack, reason = _by_place(found)
    left, parts = _parted(spans, place, ns)
    _tell(parts, stack, reason)
    return np.insert(left, place + 1, parts), np.insert(is_idle, place + 1, False)


def cut_pieces(
    spans: Rows, is_idle: Bools, served: Sequence[Requests], pieces: Callable[[], Iterator[Rows]]
) -> tuple[Rows, Bools, Iterator[Rows]]:
    """(spans with those of what is cut out behind them, which are idle, PIECE_DTYPE of them all).

    spans: Profile.spans, which are sums; pieces: gives theirs, in the order of time, some at a time, three times.
    """
    idle = [_IdlePieces(of_loop, spans, is_idle) for of_loop in served]
    totals = np.zeros((len(idle), 2))
    for block in pieces():
        for total, each in zip(totals, idle):
            _, covered_ns, weights = each.of(block)
            total += covered_ns.sum(), weights.sum()

    def blocks_cut() -> Iterator[tuple[Rows, Rows, Ints, list[_Kind], npt.NDArray[np.intp]]]:
        """(what is left of some pieces, parts that are cut out, of which of them, the kinds of parts, that of each)."""
        cuttings = [_Cutting(of_loop, *total) for of_loop, total in zip(served, totals.tolist())]
        for block in pieces():
            place, ns, stack, reason = _by_place([it.cut(*each.of(block)) for it, each in zip(cuttings, idle)])
            left, parts = _parted(block, place, ns)
            columns = [parts["span"], stack, reason]
            first, kind = group_numbers(columns)
            yield left, parts, place, [*zip(*(column[first].tolist() for column in columns))], kind

    ns_of: dict[_Kind, list[int]] = {}  # what they last, what they stand for
    for _, parts, _, kinds, kind in blocks_cut():
        sums = (sums_by(kind, parts[name], len(kinds)).tolist() for name in ("duration_ns", "stands_for_ns"))
        for key, *more in zip(kinds, *sums):
            ns_of[key] = [sum(each) for each in zip(ns_of.get(key, (0, 0)), more)]
    number_of = {key: len(spans) + number for number, key in enumerate(ns_of)}
    place, stack, reason = np.array([*ns_of], np.int64).reshape(-1, 3).T
    rest, cut_out = copied(spans), picked(spans, place)
    for name, column in zip(("duration_ns", "stands_for_ns"), np.array([*ns_of.values()], np.int64).reshape(-1, 2).T):
        cut_out[name] = column
        np.subtract.at(rest[name], place, column)
    cut_out["wait"] = cut_out["count"] = 0
    _tell(cut_out, stack, reason)

    def all_pieces() -> Iterator[Rows]:
        for left, parts, place, kinds, kind in blocks_cut():
            parts["span"] = np.array([number_of[key] for key in kinds], np.int64)[kind]
            yield np.insert(left, place + 1, parts)

    is_idle = np.append(is_idle, np.zeros(len(cut_out), np.bool_))
    return one_after_another(SPAN_DTYPE, [rest, cut_out]), is_idle, all_pieces()


class _IdlePieces:
    """Those of an event loop."""

    def __init__(self, of_loop: Requests, spans: Rows, is_idle: Bools) -> None:
        self._is_own, self._is_sum = is_idle & (spans["thread"] == of_loop.thread), spans["how"] == How.SUMMED
        self._part, self._cover = of_loop.covered_ns / np.maximum(spans["duration_ns"], 1), Cover(of_loop.spans)

    def of(self, pieces: Rows) -> tuple[Ints, Floats, Ints]:
        """(places of them, what of what each stands for is covered, what each stands for)."""
        places = np.flatnonzero(self._is_own[pieces["span"]])
        start_ns, lengths, weights, span = (
            pieces[name][places] for name in ("start_ns", "duration_ns", "stands_for_ns", "span")
        )
        covered_ns = np.where(self._is_sum[span], lengths * self._part[span], self._cover.of(start_ns, lengths))
        return places, _covered(covered_ns, lengths, weights), weights


class _Cutting:
    """Of one event loop: its idle time comes in the order of time."""

    def __init__(self, of_loop: Requests, covered_ns: float, all_ns: float) -> None:
        """covered_ns, all_ns: of all of its idle time."""
        self._ns = of_loop.ns
        # Where what is covered is not all that is to be moved the rest is of what is not.
        self._of_covered = min(1.0, of_loop.ns / max(covered_ns, 1.0))
        self._of_rest = max(0.0, of_loop.ns - covered_ns) / max(all_ns - covered_ns, 1.0)
        self._order = np.argsort(of_loop.spans["start_ns"], kind="stable")
        stands_for_ns = of_loop.spans["stands_for_ns"][self._order].astype(np.int64)
        share = of_loop.ns / max(int(stands_for_ns.sum()), 1)
        self._ends = np.rint(np.cumsum(stands_for_ns) * share).astype(np.int64)
        self._stack, self._reason = of_loop.spans["stack"].astype(np.int64), _REASON_OF_SHARE[of_loop.shares]
        self._passed, self._moved = 0.0, 0

    def cut(self, places: Ints, covered_ns: Floats, weights: Ints) -> _Cut:
        """Of idle times after those before, which are at these places of something."""
        moving = covered_ns * self._of_covered + (weights - covered_ns) * self._of_rest
        passed = self._passed + np.cumsum(moving)
        until = np.minimum(np.rint(passed), self._ns).astype(np.int64)
        last = int(until[-1]) if len(until) else self._moved
        inside = self._ends[slice(*np.searchsorted(self._ends, (self._moved, last), side="right"))]
        ends = each_once(np.concatenate([until, inside]))
        ends = ends[ends > self._moved]
        ns = np.diff(ends, prepend=self._moved)
        which, wait = np.searchsorted(until, ends), self._order[np.searchsorted(self._ends, ends)]
        if len(until):
            self._passed, self._moved = float(passed[-1]), last
        return places[which], ns, self._stack[wait], self._reason[wait]


def _covered(covered_ns: Floats, lengths: Ints, weights: Ints) -> Floats:
    """Of what these times stand for."""
    return np.asarray(np.minimum(covered_ns * (weights / np.maximum(lengths, 1)), weights))


def _by_place(found: Sequence[_Cut]) -> _Cut:
    place, ns, stack, reason = (np.concatenate(columns) for columns in zip(*found))
    order = np.argsort(place, kind="stable")
    return place[order], ns[order], stack[order], reason[order]


def _parted(rows: Rows, places: Ints, ns: Ints) -> tuple[Rows, Rows]:
    """(what is left of rows with times, the parts of them that stand for so much each, one behind the other at their
    end); places: of which row each is, ascending."""
    left, parts = copied(rows), picked(rows, places)
    parts["duration_ns"] = np.floor(parts["duration_ns"] * (ns / np.maximum(parts["stands_for_ns"], 1)))
    parts["stands_for_ns"] = ns
    for name in ("duration_ns", "stands_for_ns"):
        np.subtract.at(left[name], places, parts[name])
    before = np.cumsum(parts["duration_ns"]) - parts["duration_ns"]
    first = np.searchsorted(places, places)
    parts["start_ns"] = (left["start_ns"] + left["duration_ns"])[places] + before - before[first]
    parts["wait"] = parts["count"] = 0
    return left, parts


def _tell(spans: Rows, stack: Ints, reason: Ints) -> None:
    spans["stack"], spans["reason"] = stack, reason
    spans["flags"] &= ~np.uint8(SpanFlag.IDLE)
