"""Spans -> what they add up to: weights by thread, stack, state and reason; the account of a thread; GIL waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.grouping import first_of, grouped, numbers_of, ordered
from bpfprof.model.profile import EVENT_WEIGHT_DTYPE, GIL_ROW_DTYPE, WEIGHT_DTYPE
from bpfprof.model.rows import GrowingRows, one_after_another, picked
from bpfprof.model.spans import How, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.profile.filters import wait_lengths

Rows = npt.NDArray[np.void]

# One row a (thread, state, reason): all time on the clock, whatever is shown of it.
ACCOUNT_DTYPE = np.dtype([("thread", "<u4"), ("state", "u1"), ("reason", "<u2"), ("count", "<i8"), ("total_ns", "<i8")])
_ADD = {"count": np.add, "total_ns": np.add, "ns": np.add, "total": np.add, "max_ns": np.maximum}
_TOTALS = {"total_ns", "ns", "total"}  # each dtype has one
_GIL = reason_number("gil")
OF_SUMS = ("thread", "stack", "state", "reason", "status", "flags", "how")  # what spans that are added up share
_MOST_HELD = 1 << 17  # rows


def weights_of(
    spans: Rows, stacks: npt.NDArray[np.integer[Any]], longest_ns: npt.NDArray[np.int64] | None = None
) -> Rows:
    """Rows of WEIGHT_DTYPE, by (thread, stack, state, reason). stacks: the profile's, one a span.

    longest_ns: of spans that are added up the longest of those that each is made of.
    """
    rows = np.zeros(len(spans), WEIGHT_DTYPE)
    for name in ("thread", "state", "reason", "count"):
        rows[name] = spans[name]
    rows["reason"][spans["state"] != ThreadState.OFF_CPU] = 0
    rows["stack"], rows["total_ns"] = stacks, spans["stands_for_ns"]
    if longest_ns is None:
        lengths = np.where(spans["state"] == ThreadState.RUNQUEUE, spans["duration_ns"], wait_lengths(spans))
    else:
        lengths = longest_ns
    rows["max_ns"] = np.where(spans["how"] == How.SUMMED, 0, lengths)
    return merged(WEIGHT_DTYPE, [rows])


def added_up(spans: Rows) -> Rows:
    """One span for each thread, stack and state, which begins where the first of them does."""
    sums, _ = added_up_by(spans, [spans[name] for name in OF_SUMS])
    return picked(sums, sums["duration_ns"] > 0)


def added_up_by(spans: Rows, columns: Sequence[npt.NDArray[np.generic]]) -> tuple[Rows, npt.NDArray[np.intp]]:
    """(one span for all that are alike in these columns, in the order of the first of each; the place of each one's)"""
    order, begin = grouped(columns)
    if not len(order):
        return spans[:0].copy(), order
    first = first_of(order, begin)
    by_first = np.argsort(first)
    sums = picked(spans, first[by_first])
    for name in ("duration_ns", "stands_for_ns", "count"):
        sums[name] = np.add.reduceat(spans[name][order], begin, dtype=np.int64)[by_first]
    sums["start_ns"] = np.minimum.reduceat(spans["start_ns"][order], begin)[by_first]
    place = np.empty(len(first), np.intp)
    place[by_first] = np.arange(len(first))
    return sums, place[numbers_of(order, begin)]


def account_of(spans: Rows) -> Rows:
    """Rows of ACCOUNT_DTYPE."""
    rows = np.zeros(len(spans), ACCOUNT_DTYPE)
    for name in ("thread", "state", "reason", "count"):
        rows[name] = spans[name]
    rows["total_ns"] = spans["duration_ns"]
    return merged(ACCOUNT_DTYPE, [rows])


def gil_waits_of(spans: Rows) -> Rows:
    """Rows of GIL_ROW_DTYPE, with stacks of the recording."""
    waits = picked(spans, (spans["state"] == ThreadState.OFF_CPU) & (spans["reason"] == _GIL))
    rows = np.zeros(len(waits), GIL_ROW_DTYPE)
    rows["thread"], rows["holder"] = waits["thread"], waits["holder"].astype(np.int64) - 1
    rows["stack"], rows["ns"] = waits["holder_stack"], waits["stands_for_ns"]
    return merged(GIL_ROW_DTYPE, [rows])


def event_weights_of(rows: Rows, stacks: npt.NDArray[np.integer[Any]]) -> Rows:
    """Rows of EVENT_WEIGHT_DTYPE of those of EVENT_DTYPE. stacks: the profile's, one a row."""
    weights = np.zeros(len(rows), EVENT_WEIGHT_DTYPE)
    for name in ("event", "thread"):
        weights[name] = rows[name]
    weights["stack"], weights["count"], weights["total"] = stacks, 1, rows["count"]
    return merged(EVENT_WEIGHT_DTYPE, [weights])


def merged(dtype: np.dtype[np.void], parts: list[Rows]) -> Rows:
    """Rows of the parts, those that are alike but for their sums as one, in order; what took no time is left out."""
    rows = one_after_another(dtype, parts)
    names = [name for name in dtype.names or () if name not in _ADD]
    order, first = ordered([rows[name] for name in names])
    sums = picked(rows, order[first])
    for name in {*(dtype.names or ())} & {*_ADD} if len(first) else ():
        sums[name] = _ADD[name].reduceat(rows[name][order], first)
    (total,) = _TOTALS & {*(dtype.names or ())}
    return picked(sums, sums[total] > 0)


class Sums:
    """What merged() makes of parts that it made, which come one by one: of groups of threads, in their order."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self._dtype, self._ended = dtype, GrowingRows(dtype)
        self._parts = list[Rows]()  # of the last group, or some of it

    def add(self, part: Rows) -> None:
        if not len(part):
            return
        if self._parts and int(part["thread"][0]) > max(int(each["thread"][-1]) for each in self._parts):
            self._end_group()
        self._parts.append(part)
        if sum(map(len, self._parts)) > _MOST_HELD + 2 * len(self._parts[0]):
            self._parts = [merged(self._dtype, self._parts)]

    def rows(self) -> Rows:
        """All parts as one."""
        self._end_group()
        return self._ended.whole()

    def _end_group(self) -> None:
        self._ended.append(self._parts[0] if len(self._parts) == 1 else merged(self._dtype, self._parts))
        self._parts = []
