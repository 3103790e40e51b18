"""Profile with its spans -> the intervals that timelines draw, by thread: spans that nothing tells apart are one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.grouping import group_numbers, sums_by
from bpfprof.model.profile import Profile
from bpfprof.model.rows import one_after_another, picked
from bpfprof.model.single import single_pieces
from bpfprof.model.spans import PIECE_DTYPE, SpanFlag, ThreadState
from bpfprof.query.work.table import Work

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

MIXED = 4  # as a state: several intervals, each too short to be drawn
STATES = (ThreadState.ON_CPU, ThreadState.RUNQUEUE, ThreadState.OFF_CPU, ThreadState.UNKNOWN)

# One row an interval, by thread and time. state_ns: its time in each of STATES, which sum to duration_ns. weight_ns:
# what it speaks for. lock: a number of Work.locks; object, waker, holder, wait: as in spans. is_last: who ended a wait
# ended it at the end of this interval. Of a MIXED one `count` says how many it holds, and what follows it is 0.
INTERVAL_DTYPE = np.dtype(
    [
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("weight_ns", "<i8"),
        ("state_ns", "<i8", (len(STATES),)),
        ("count", "<i8"),
        ("thread", "<u4"),
        ("stack", "<u4"),
        ("lock", "<u4"),
        ("object", "<u4"),
        ("waker", "<u4"),
        ("holder", "<u4"),
        ("wait", "<u4"),
        ("reason", "<u2"),
        ("state", "u1"),
        ("is_idle", "?"),
        ("is_last", "?"),
    ]
)
_OF_SPANS = ("thread", "stack", "object", "waker", "reason", "state")
_OF_WORK = ("lock", "is_idle")
_OF_INTERVALS = ("wait", "holder", "is_last")
BUDGET = 150_000  # intervals: of more, short ones beside each other are one; what reads them takes some 100 MB
_MOST_HELD = 2  # times the budget: then they are folded
_BUCKETS = (65536, 16384, 4096, 1024)  # of the recording's time; what is shorter than one is short


class _Pieces(NamedTuple):
    """Columns of PIECE_DTYPE. holder: 0 of what is no wait."""

    start_ns: Ints
    duration_ns: Ints
    stands_for_ns: Ints
    span: npt.NDArray[np.uint32]
    wait: npt.NDArray[np.uint32]
    holder: npt.NDArray[np.uint32]


_OF_PIECES = _Pieces._fields


@dataclass(frozen=True)
class Intervals:
    """rows: INTERVAL_DTYPE, of thread n from begin[n] to begin[n + 1]. short_ns: shorter ones may be MIXED; 0: none is.

    Those that are longer never are.
    """

    rows: npt.NDArray[np.void]
    begin: Sequence[int]
    short_ns: int


def intervals_of(profile: Profile, work: Work, budget: int = BUDGET) -> Intervals:
    """What is not shown of a profile has none. Raises ValueError if the profile was built without its spans."""
    if profile.spans is None:
        raise ValueError("a timeline needs a profile with its spans")
    short = iter([max(profile.info.duration_ns // buckets, 1) for buckets in _BUCKETS])
    held, count, short_ns = [np.zeros(0, INTERVAL_DTYPE)], 0, 0
    made = _Made(profile, work)
    for pieces, is_last in made.told_apart():
        held.append(made.intervals(pieces, is_last, short_ns))
        count += len(held[-1])
        if count > _MOST_HELD * budget:
            whole, short_ns = _folded(one_after_another(INTERVAL_DTYPE, held), budget, short_ns, short)
            held, count = [whole], 0
    whole, short_ns = _folded(one_after_another(INTERVAL_DTYPE, held), budget, short_ns, short)
    return Intervals(whole, np.searchsorted(whole["thread"], np.arange(len(profile.threads) + 1)).tolist(), short_ns)


class _Made:
    def __init__(self, profile: Profile, work: Work) -> None:
        spans = profile.spans
        assert spans is not None
        self._profile = profile
        self._is_shown = spans["flags"] & SpanFlag.HIDDEN == 0
        self._state, self._thread = spans["state"].copy(), spans["thread"].copy()
        self._columns = {name: spans[name] for name in _OF_SPANS}
        self._columns |= {"lock": work.span_locks, "is_idle": work.idle_spans}
        self._look = group_numbers(self._columns.values())[1]  # what tells spans apart

    def told_apart(self) -> Iterator[tuple[_Pieces, Bools]]:
        """(pieces, those that nothing tells apart as one, by thread and time; whether a wait ends with each)."""
        before = [np.zeros(0, PIECE_DTYPE[name]) for name in _OF_PIECES]  # the last one so far, which may go on
        for pieces in single_pieces(self._profile):
            shown = self._is_shown[pieces["span"]]
            parts = [pieces[name] if shown.all() else pieces[name][shown] for name in _OF_PIECES]
            found, is_last = self._joined(_Pieces._make(map(np.concatenate, zip(before, parts))))
            yield _Pieces._make(column[:-1] for column in found), is_last[:-1]
            before = [column[-1:] for column in found]
        yield self._joined(_Pieces._make(before))

    def _joined(self, pieces: _Pieces) -> tuple[_Pieces, Bools]:
        is_wait = self._state[pieces.span] == ThreadState.OFF_CPU
        holder = pieces.holder * is_wait
        begins = _changes(self._look[pieces.span]) | _changes(pieces.wait) | _changes(holder)
        begins |= _gaps(pieces.start_ns, pieces.duration_ns)
        found = pieces._replace(holder=holder)
        if not begins.all():
            first = np.flatnonzero(begins)
            ns, stands_for_ns = (np.add.reduceat(each, first) for each in (pieces.duration_ns, pieces.stands_for_ns))
            found = _Pieces._make(column[first] for column in found)
            found, is_wait = found._replace(duration_ns=ns, stands_for_ns=stands_for_ns), is_wait[first]
        waits = found.wait * is_wait
        return found, (waits > 0) & np.append(_changes(waits)[1:], True)[: len(waits)]

    def intervals(self, pieces: _Pieces, is_last: Bools, short_ns: int) -> npt.NDArray[np.void]:
        """Rows of INTERVAL_DTYPE, of which short ones beside each other are MIXED; 0: none is."""
        span, ns, first = pieces.span, pieces.duration_ns, np.arange(len(pieces.span))
        if short_ns:
            first = np.flatnonzero(_apart(self._thread[span], pieces.start_ns, ns, short_ns))
        rows = np.zeros(len(first), INTERVAL_DTYPE)
        if not len(first):
            return rows
        count = np.diff(np.append(first, len(span)))
        is_one = count == 1
        single, of_span = first[is_one], span[first[is_one]]
        for name in (*_OF_SPANS, *_OF_WORK):
            rows[name][is_one] = self._columns[name][of_span]
        rows["thread"], rows["count"] = self._thread[span[first]], count
        rows["state"][~is_one] = MIXED
        rows["start_ns"], rows["duration_ns"] = pieces.start_ns[first], np.add.reduceat(ns, first)
        rows["weight_ns"] = np.add.reduceat(pieces.stands_for_ns, first)
        cell = np.repeat(np.arange(len(first)) * len(STATES), count) + self._state[span]
        rows["state_ns"] = sums_by(cell, ns, len(first) * len(STATES)).reshape(-1, len(STATES))
        rows["wait"][is_one], rows["is_last"][is_one] = pieces.wait[single], is_last[single]
        rows["holder"][is_one] = pieces.holder[single]
        return rows


def _folded(
    rows: npt.NDArray[np.void], budget: int, short_ns: int, longer: Iterator[int]
) -> tuple[npt.NDArray[np.void], int]:
    """(at most so many rows if that can be, up to how long ones may be MIXED), from short_ns on, which some were."""
    thread, start_ns, ns = (rows[name].copy() for name in ("thread", "start_ns", "duration_ns"))
    begins = _apart(thread, start_ns, ns, short_ns) if short_ns else np.ones(len(rows), np.bool_)
    while np.count_nonzero(begins) > budget:
        next_ns = next(longer, 0)
        if not next_ns:
            break
        short_ns, begins = next_ns, _apart(thread, start_ns, ns, next_ns)
    return rows if begins.all() else _with_mixed(rows, np.flatnonzero(begins)), short_ns


def _with_mixed(rows: npt.NDArray[np.void], first: npt.NDArray[np.intp]) -> npt.NDArray[np.void]:
    """Those from each of these places on as one."""
    found = picked(rows, first)
    for name in ("duration_ns", "weight_ns", "state_ns", "count"):
        found[name] = np.add.reduceat(rows[name], first)
    mixed = np.flatnonzero(found["count"] > 1)
    for name in {*_OF_SPANS, *_OF_WORK, *_OF_INTERVALS} - {"thread"}:
        found[name][mixed] = 0
    found["state"][mixed] = MIXED
    return found


def _apart(thread: npt.NDArray[np.integer[Any]], start_ns: Ints, ns: Ints, short_ns: int) -> Bools:
    """Whether each begins an interval: a short one does not where it follows another short one of the same time."""
    is_long = ns >= short_ns
    begins = _changes(thread) | _gaps(start_ns, ns) | _changes(start_ns // short_ns)
    return np.asarray(begins | is_long | np.append(False, is_long[:-1])[: len(ns)])


def _changes(column: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Whether each differs from the one before; the first does."""
    return np.append(True, column[1:] != column[:-1])[: len(column)]


def _gaps(start_ns: Ints, ns: Ints) -> Bools:
    return np.append(True, start_ns[1:] != (start_ns + ns)[:-1])[: len(ns)]
