"""Rows that the page's spans are made of, by thread and time: of more than a browser shows at once fewer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.grouping import group_numbers, ordered

# Bits of `flags`; IN_TABLE: it is in a group of waits, IN_IDLE: in one of idle ones.
IS_IDLE, HOLDS_GIL, IN_TABLE, IN_IDLE = 1, 2, 4, 8

# look: a place in Told. Times in nanoseconds. gap: after the row before, whose end is where it began and its duration;
# start: for the order.
PAGE_COLUMNS: dict[str, np.dtype[Any]] = {
    "look": np.dtype("<u4"),
    "holder": np.dtype("<u4"),
    "gap": np.dtype("<i8"),
    "duration": np.dtype("<i8"),
    "weight": np.dtype("<i8"),
    "count": np.dtype("<i8"),
    "start": np.dtype("<i8"),
}
BUDGET = 400_000  # rows: more are made fewer
_SUMMED = ("gap", "duration", "weight", "count")
_TOLD_BY = ("look", "holder")
_OF_TIME = ("look", "gap", "duration", "start")
_OF_WEIGHT = ("look", "holder", "weight", "count", "start")
_MOST_HELD = 1.25  # times the budget, or what is left of it: then they are
_AT_A_TIME = 0.125  # of the budget: so many rows are taken apart at a time
_WORTH = 0.8  # of the rows are left then, or it is not done
# Of the recording's time, in which alike rows become one: a screen's pixels and fewer. Where that leaves too many, they
# are of each thread's time by kind.
_ALIKE_BUCKETS, _KIND_BUCKETS = (8192, 2048), (2048, 512, 128)
_WIDER = 16  # buckets of rows that weigh little; of those that weigh less it is the whole recording

Rows = dict[str, npt.NDArray[Any]]  # columns of PAGE_COLUMNS by their names; of a column that is not there all are 0
Places = npt.NDArray[np.intp]


class Told(NamedTuple):
    """What rows may look like, by thread: looks are few where rows are many."""

    thread: npt.NDArray[np.uint32]
    place: npt.NDArray[np.uint32]
    kind: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]

    def picked(self, places: npt.NDArray[np.integer[Any]]) -> Told:
        """Those at these places."""
        return Told(self.thread[places], self.place[places], self.kind[places], self.flags[places])


class Fewer:
    """Rows that are added some at a time; of more than `budget` those of a bucket that are alike are one.

    Where stacks are so many that this helps little, time and what it was spent in are apart: rows with time have no
    weight and are one for each kind in a bucket, rows with weight take no time. Of these the heaviest, half the budget
    at most, are one where they are alike in a bucket. Of lighter ones buckets are wider, then the whole recording, and
    each stands at one of its moments, chosen by chance as its weight is shared out. Rows longer than a bucket stay
    whole. No time, weight or count is lost.
    """

    def __init__(self, duration_ns: int, told: Told, budget: int, weight_ns: int = 0, bucket_ns: int = 0) -> None:
        """weight_ns: of all rows, if it is known before they are. bucket_ns: some rows are of several moments in it;
        then rows may be added in any order."""
        self._told, (_, self._timed_as) = told, group_numbers([told.thread, told.kind, told.flags & IS_IDLE])
        self._duration_ns, self._budget, self._most = duration_ns, budget, _MOST_HELD * budget
        self._buckets = [ns for ns in (max(duration_ns // count, 1) for count in _ALIKE_BUCKETS) if ns > bucket_ns]
        self._held, self._count = list[Rows](), 0
        self._added, self._added_count = list[Rows](), 0  # where time and what it was spent in are apart: still whole
        self._all_ns, self._seen_ns = weight_ns, 0
        self.bucket_ns, self.is_apart, self._has_order = bucket_ns, False, not bucket_ns

    def add(self, rows: Rows) -> None:
        """Rows with all columns, after those that were added before in the order of thread and time."""
        self._seen_ns += int(rows["weight"].sum())
        if self.is_apart:
            self._added.append(rows)
            self._added_count += len(rows["look"])
            if self._added_count <= _AT_A_TIME * self._budget:
                return
            rows = self._parted(self._taken())
        elif self.bucket_ns:
            rows = self._alike(rows)
        self._held.append(rows)
        self._count += len(rows["look"])
        if self._count > self._most:
            self._make_fewer()
            self._most = _MOST_HELD * max(self._budget, self._count)

    def rows(self) -> tuple[Rows, Told]:
        """(rows by thread and time, what each of them looks like)"""
        held, count = [*map(dict, self._held)] if not self.bucket_ns else [], self._count
        self._make_fewer()
        if held and self._count > _WORTH * count:
            self._held, self.bucket_ns, self.is_apart = held, 0, False
        rows = _one_after_another(self._held)
        if self.is_apart or not self._has_order:
            rows = self._in_order(rows)
        told = self._told.picked(rows["look"])
        if self.is_apart:  # time is only of a kind
            told.flags[(rows["weight"] == 0) & (rows["count"] == 0)] &= IS_IDLE
        return rows, told

    def _make_fewer(self) -> None:
        if self._added:
            self._held.append(self._parted(self._taken()))
        rows = _one_after_another(self._held)
        while len(rows["look"]) > self._budget and self._buckets:
            self.bucket_ns = self._buckets.pop(0)
            rows = self._alike(rows)
        if len(rows["look"]) > self._budget:
            self.is_apart = True
            rows = self._parted(rows)
        self._held.append(rows)
        self._count = len(rows["look"])

    def _taken(self) -> Rows:
        """What was added since."""
        self._added_count = 0
        return _one_after_another(self._added)

    def _parted(self, rows: Rows) -> Rows:
        """Time apart from what it was spent in; the rows are none any more."""
        is_short = rows["duration"] <= self.bucket_ns
        timed = np.flatnonzero(is_short & ((rows["duration"] > 0) | (rows["gap"] > 0)))
        weighty = np.flatnonzero(is_short & ((rows["weight"] > 0) | (rows["count"] > 0)))
        long = _picked(rows, np.flatnonzero(~is_short))
        parts = [long, self._timed(_picked(rows, timed, _OF_TIME))]
        weighty_rows = _picked(rows, weighty, _OF_WEIGHT)
        rows.clear()  # they are in memory no longer than needed
        return _one_after_another([*parts, self._weighty(weighty_rows)])

    def _timed(self, rows: Rows) -> Rows:
        """Of short ones their time by kind."""
        kind = self._timed_as[rows["look"]]
        for buckets in _KIND_BUCKETS:
            self.bucket_ns = max(self.bucket_ns, self._duration_ns // buckets, 1)
            found = _summed(rows, [kind, rows["start"] // self.bucket_ns])
            if 2 * len(found["look"]) <= self._budget:
                break
        return found

    def _weighty(self, rows: Rows) -> Rows:
        """Of short ones what it was spent in."""
        least = 2 * max(self._all_ns, self._seen_ns) // self._budget
        parts = [_heavy(rows, least)]
        keys = [rows[name] for name in _TOLD_BY]
        rows = _summed(rows, [*keys, rows["start"] // (_WIDER * self.bucket_ns)], "weight")
        parts.append(_heavy(rows, least))
        # They are in the order of what tells them apart.
        changed = np.any([np.diff(rows[name].astype(np.int64)) != 0 for name in _TOLD_BY], axis=0)
        first = np.flatnonzero(np.append(True, changed)[: len(rows["look"])])
        parts.append(_sums(rows, np.arange(len(rows["look"])), first, "weight"))
        rows.clear()
        return _one_after_another(parts)

    def _alike(self, rows: Rows) -> Rows:
        """Rows of a bucket that are alike as one; a longer one comes last in it, so that no other is moved far."""
        is_long = rows["duration"] > self.bucket_ns
        keys = [self._told.thread[rows["look"]], rows["start"] // self.bucket_ns, is_long]
        return _summed(rows, [*keys, *(rows[name] for name in _TOLD_BY)])

    def _in_order(self, rows: Rows) -> Rows:
        """By thread and time; in a bucket those that take no time come after the others, and long ones last."""
        length = (rows["duration"] == 0).astype(np.int8) + 2 * (rows["duration"] > self.bucket_ns)
        keys = [self._told.thread[rows["look"]], rows["start"] // self.bucket_ns, length]
        return _picked(rows, ordered(keys)[0])


def _heavy(rows: Rows, least: int) -> Rows:
    """Those that weigh so much, which are taken out."""
    is_light = rows["weight"] < least
    found = _picked(rows, np.flatnonzero(~is_light))
    rows |= _picked(rows, np.flatnonzero(is_light))
    return found


def _summed(rows: Rows, keys: Sequence[npt.NDArray[np.generic]], shown: str = "") -> Rows:
    """Rows that are alike in these as one, in their order: the first, or one by chance, as `shown` is shared out."""
    return _sums(rows, *ordered(keys), shown)


def _sums(rows: Rows, order: Places, first: Places, shown: str = "") -> Rows:
    """The same of rows in this order, of which each group begins at a place of `first`."""
    place = first
    if shown and len(order):
        until = np.cumsum(rows[shown][order])
        before = np.append(0, until)[first]
        whole = np.append(before[1:], until[-1]) - before
        chosen = before + (np.random.default_rng(len(order)).random(len(first)) * whole).astype(np.int64)
        place = np.searchsorted(until, chosen, side="right").clip(first, np.append(first[1:], len(order)) - 1)
    place, found = order[place], dict[str, npt.NDArray[Any]]()
    for name, column in rows.items():
        is_sum = name in _SUMMED and len(order)
        found[name] = np.add.reduceat(column[order], first) if is_sum else column[place]
    return found


def _picked(rows: Rows, places: Places, names: Iterable[str] = ()) -> Rows:
    return {name: rows[name][places] for name in names or rows}


def _one_after_another(parts: list[Rows]) -> Rows:
    """All columns of all parts, of which none is left."""
    counts = [len(part["look"]) for part in parts]
    found = {}
    for name, dtype in PAGE_COLUMNS.items():  # so no more than a column is in memory twice
        columns = [part.pop(name) if name in part else np.zeros(count, dtype) for part, count in zip(parts, counts)]
        found[name] = np.concatenate([np.zeros(0, dtype), *columns])
    parts.clear()
    return found
