"""A Profile and its work -> the spans of a data set, and what they add up to in each minute."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.fleet.layout import unix_ns
from bpfprof.model.grouping import group_numbers, sums_by
from bpfprof.model.profile import Profile
from bpfprof.model.rows import picked
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.query.compare.slices import cut_at
from bpfprof.query.work.table import Work, worked_spans

MINUTE_NS = 60_000_000_000
_LONGEST_NS = 1 << 62
_MOST_MINUTES = 10_000  # of a recording, a week: what comes later is in the last one

# One row a (minute, thread, stack, state, reason, idle): spans added up. minute: since 1970.
WEIGHT_ROW_DTYPE = np.dtype(
    [
        ("minute", "<i8"),
        ("thread", "<i8"),
        ("stack", "<i8"),
        ("state", "<i8"),
        ("reason", "<i8"),
        ("idle", "<i8"),
        ("ns", "<i8"),
        ("count", "<i8"),
    ]
)


@dataclass(frozen=True)
class DataSpans:
    """Rows of SPAN_DTYPE, their locks' numbers (0: none) and whether they are waits of threads with nothing to do."""

    rows: npt.NDArray[np.void]
    locks: npt.NDArray[np.int64]
    idle: npt.NDArray[np.bool_]


def data_spans(profile: Profile, work: Work) -> DataSpans:
    """All that the recording shows: of one without waits, or without samples, the others are not."""
    assert profile.spans is not None
    if work.served:  # spans were cut
        rows, idle = worked_spans(profile, work)
        locks = np.zeros(len(rows), np.int64)
        of_wait = np.zeros(int(max(profile.spans["wait"].max(initial=0), rows["wait"].max(initial=0))) + 1, np.int64)
        has_lock = work.span_locks > 0
        of_wait[profile.spans["wait"][has_lock]] = work.span_locks[has_lock]
        locks = np.where((rows["wait"] > 0) & (rows["state"] == ThreadState.OFF_CPU), of_wait[rows["wait"]], 0)
    else:
        rows, idle, locks = profile.spans, work.idle_spans, work.span_locks
    shown = rows["flags"] & SpanFlag.HIDDEN == 0
    return DataSpans(rows, locks, idle) if shown.all() else DataSpans(picked(rows, shown), locks[shown], idle[shown])


def weight_rows(profile: Profile, spans: DataSpans) -> npt.NDArray[np.void]:
    """Rows of WEIGHT_ROW_DTYPE, whose nanoseconds and counts sum to those of the spans; what took no time is left out.

    A span in several minutes has in each of them its part; it counts in the one in which it began.
    """
    rows, began_ns = spans.rows, unix_ns(profile.info)
    end_ns = int((rows["start_ns"] + rows["duration_ns"]).max(initial=0))
    first = began_ns // MINUTE_NS
    count = min((began_ns + end_ns) // MINUTE_NS - first, _MOST_MINUTES)
    edges = (first + np.arange(count + 2, dtype=np.int64)) * MINUTE_NS - began_ns
    edges[-1] = max(end_ns + 1, int(edges[-1]))
    which, minute, overlap = cut_at(rows, edges)
    is_first = np.diff(which, prepend=-1) != 0
    ns = rows["stands_for_ns"].astype(np.int64)[which]
    if not is_first.all():
        ns = _parts(ns, overlap, is_first)
    columns = {
        "minute": minute,
        "thread": rows["thread"][which],
        "stack": rows["stack"][which],
        "state": rows["state"][which],
        "reason": np.where(rows["state"] == ThreadState.OFF_CPU, rows["reason"], 0)[which],
        "idle": spans.idle[which],
    }
    places, numbers = group_numbers(columns.values())
    found = np.zeros(len(places), WEIGHT_ROW_DTYPE)
    for name, column in columns.items():
        found[name] = column[places]
    found["minute"] += first
    found["ns"] = sums_by(numbers, ns, len(places))
    found["count"] = sums_by(numbers, np.where(is_first, rows["count"][which], 0).astype(np.int64), len(places))
    return picked(found, found["ns"] > 0)


def _parts(
    ns: npt.NDArray[np.int64], overlap: npt.NDArray[np.float64], is_first: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """For each piece of a span its part of what the span stands for; they sum to it."""
    begins = np.flatnonzero(is_first)
    of_span = np.cumsum(is_first) - 1
    whole = np.add.reduceat(overlap, begins)[of_span]
    upto = np.cumsum(overlap)
    upto -= (upto[begins] - overlap[begins])[of_span]
    is_last = np.append(is_first[1:], True)
    parts = np.clip(ns * (upto / np.maximum(whole, 1)), 0, _LONGEST_NS)
    ends = np.where(is_last, ns, np.rint(parts).astype(np.int64))
    return np.where(is_first, ends, np.diff(ends, prepend=0))
