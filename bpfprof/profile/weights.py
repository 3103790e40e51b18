"""Spans -> what they add up to: weights by thread, stack, state and reason; the account of a thread; GIL waits."""

from __future__ import annotations

from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.profile import EVENT_WEIGHT_DTYPE, GIL_ROW_DTYPE, WEIGHT_DTYPE
from bpfprof.model.rows import one_after_another, picked
from bpfprof.model.spans import How, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.profile.filters import wait_lengths

Rows = npt.NDArray[np.void]

# One row a (thread, state, reason): all time on the clock, whatever is shown of it.
ACCOUNT_DTYPE = np.dtype([("thread", "<u4"), ("state", "u1"), ("reason", "<u2"), ("count", "<i8"), ("total_ns", "<i8")])
_ADD = {"count": np.add, "total_ns": np.add, "ns": np.add, "total": np.add, "max_ns": np.maximum}
_TOTALS = {"total_ns", "ns", "total"}  # each dtype has one
_GIL = reason_number("gil")


def weights_of(spans: Rows, stacks: npt.NDArray[np.integer[Any]]) -> Rows:
    """Rows of WEIGHT_DTYPE, by (thread, stack, state, reason). stacks: the profile's, one a span."""
    rows = np.zeros(len(spans), WEIGHT_DTYPE)
    for name in ("thread", "state", "reason", "count"):
        rows[name] = spans[name]
    rows["reason"][spans["state"] != ThreadState.OFF_CPU] = 0
    rows["stack"], rows["total_ns"] = stacks, spans["stands_for_ns"]
    lengths = np.where(spans["state"] == ThreadState.RUNQUEUE, spans["duration_ns"], wait_lengths(spans))
    rows["max_ns"] = np.where(spans["how"] == How.SUMMED, 0, lengths)
    return merged(WEIGHT_DTYPE, [rows])


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
    rows = picked(rows, np.lexsort([rows[name] for name in reversed(names)]))
    changed = np.zeros(len(rows), np.bool_)
    changed[:1] = True
    for name in names:
        changed[1:] |= rows[name][1:] != rows[name][:-1]
    first = np.flatnonzero(changed)
    sums = picked(rows, first)
    for name in {*(dtype.names or ())} & {*_ADD} if len(first) else ():
        sums[name] = _ADD[name].reduceat(rows[name], first)
    (total,) = _TOTALS & {*(dtype.names or ())}
    return picked(sums, sums[total] > 0)
