"""Waits that the kernel side only added up: the short ones, and those beyond the rate of switches that was wanted.

Of a short wait is known what it was for and how long it took, but no stack. The others are like those of their thread
that chance chose to have a stack, in the same system call: their time is spread over them. One that was chosen as one
in k stands for k, and has a share by its length and by k - 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bpfprof.account.cpu_clock import shared
from bpfprof.account.intervals import Intervals, sums_by
from bpfprof.account.pieces import (
    LEAF_RUNQUEUE,
    LEAF_WAIT,
    NOT_SAMPLED_STACK,
    SHORT_STACK,
    made_pieces,
)
from bpfprof.account.reasons import call_keys, reason_number
from bpfprof.model.profile import ThreadState
from bpfprof.model.samples import LONG_WAIT_NS, UNSAMPLED

Int64Array = npt.NDArray[np.int64]

# One row a (thread, reason, is_unsampled), and of unsampled ones a system call and its first argument, if that is
# small. count: waits.
SUM_DTYPE = np.dtype(
    [
        ("thread", "<u4"),
        ("reason", "<u2"),
        ("is_unsampled", "?"),
        ("syscall", "<i2"),
        ("arg", "<u4"),
        ("count", "<i8"),
        ("blocked_ns", "<i8"),
        ("runqueue_ns", "<i8"),
    ]
)


def summed(rows: npt.NDArray[np.void], reasons: npt.NDArray[np.uint16], derived_ns: Int64Array) -> npt.NDArray[np.void]:
    """Rows of SUM_DTYPE by thread, from those of SHORT_DTYPE and their reasons; derived_ns of each thread: unknown."""
    unsampled = rows["flags"] & UNSAMPLED > 0
    calls, call = np.unique(call_keys(rows["syscall"], rows["arg"]), return_inverse=True)
    kinds = reasons.astype(np.int64) << 24 | np.where(unsampled, call + 1, 0)
    derived = np.flatnonzero(derived_ns)
    keys = np.concatenate(
        [rows["thread"].astype(np.int64) << 40 | kinds, derived << 40 | reason_number("unknown") << 24]
    )
    unique, inverse = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(unique), SUM_DTYPE)
    sums["thread"], sums["reason"], sums["is_unsampled"] = unique >> 40, unique >> 24 & 0xFFFF, unique & 0xFFFFFF > 0
    of_call = np.append(0, calls)[unique & 0xFFFFFF]
    sums["syscall"], sums["arg"] = of_call >> 32, of_call & 0xFFFFFFFF
    nothing = np.zeros(len(derived), np.int64)
    for name, more in (("count", nothing), ("blocked_ns", derived_ns[derived]), ("runqueue_ns", nothing)):
        sums[name] = sums_by(inverse, np.concatenate([rows[name].astype(np.int64), more]), len(unique))
    return sums


def short_weights(sums: npt.NDArray[np.void], stack: int = SHORT_STACK) -> Iterator[npt.NDArray[np.void]]:
    """Pieces without a place on the timeline for the sums of one thread."""
    leaves = sums["reason"] + np.uint16(LEAF_WAIT)
    for name, state, leaf in (
        ("blocked_ns", ThreadState.OFF_CPU, leaves),
        ("runqueue_ns", ThreadState.RUNQUEUE, LEAF_RUNQUEUE),
    ):
        pieces = made_pieces(
            len(sums), stack=stack, state=state, leaf=leaf, count=sums["count"], weight_ns=sums[name], longest_ns=0
        )
        yield pieces[pieces["weight_ns"] > 0]


@dataclass(frozen=True)
class Spread:
    """What is added to each wait of one thread, in their order; and rows of SUM_DTYPE that no wait could take."""

    blocked_ns: Int64Array
    blocked_count: Int64Array
    runqueue_ns: Int64Array
    runqueue_count: Int64Array
    rest: npt.NDArray[np.void]


def spread_unsampled(
    sums: npt.NDArray[np.void], intervals: Intervals, reasons: npt.NDArray[np.uint16]
) -> dict[int, Spread]:
    """The unsampled sums of each thread that has any, over its waits.

    reasons: of all waits, in the order of places. Where no wait was chosen by chance in the same call, those with the
    same reason take the time, and then any: so the thread's time is exact.
    """
    sums, begin = sums[sums["is_unsampled"]], intervals.waits.begin
    return {
        thread: _spread(sums[sums["thread"] == thread], intervals, reasons[begin[thread] : begin[thread + 1]], thread)
        for thread in np.unique(sums["thread"]).tolist()
    }


def _spread(sums: npt.NDArray[np.void], intervals: Intervals, reasons: npt.NDArray[np.uint16], thread: int) -> Spread:
    rest = sums.copy()
    added = {}
    column = intervals.waits.column
    calls = call_keys(column(thread, "syscall"), column(thread, "args")[:, 0])
    others = column(thread, "one_in").astype(np.int64) - 1  # that it stands for
    lengths_ns = sum(intervals.waits.column(thread, name).astype(np.int64) for name in ("blocked_ns", "runqueue_ns"))
    for name in ("blocked_ns", "runqueue_ns"):
        ns = intervals.waits.column(thread, name).astype(np.int64)
        if intervals.waits.is_open(thread):
            ns[-1] = 0  # has not ended: it is the only one of its kind
        ns[lengths_ns >= LONG_WAIT_NS] = 0
        more, counts = np.zeros(len(ns), np.int64), np.zeros(len(ns), np.int64)
        for place, row in enumerate(sums):
            alike = reasons == row["reason"]
            by_chance = ns * others.clip(0) * alike
            same_call = by_chance * (calls == (int(row["syscall"]) << 32 | int(row["arg"])))
            shares = next((it for it in (same_call, by_chance, ns * alike, ns) if it.any()), None)
            if shares is not None:
                chosen = np.flatnonzero(shares)
                more[chosen] += shared(shares[chosen], int(row[name]))
                counts[chosen] += shared(others[chosen].clip(1), int(row["count"]) if row[name] else 0)
                rest[name][place] = 0
        added[name] = more, counts
    return Spread(*added["blocked_ns"], *added["runqueue_ns"], rest)


def spread_rest(spread: Spread) -> Iterator[npt.NDArray[np.void]]:
    """Pieces for the sums that no wait could take."""
    return short_weights(spread.rest, NOT_SAMPLED_STACK)
