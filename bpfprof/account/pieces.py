"""Pieces: parts of one thread's time, each with a stack of the recording and a leaf mark; and their sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from bpfprof.account.cpu_clock import Bursts
from bpfprof.account.cpu_shares import share_cpu_time
from bpfprof.model.profile import ThreadState
from bpfprof.model.samples import HOLDS_GIL

# What ends a stack: nothing, the run queue, or a wait (its reason above LEAF_WAIT).
LEAF_NONE, LEAF_RUNQUEUE, LEAF_WAIT = range(3)
# In place of a stack of the recording: short waits have none, and no sample fell into the time, or no wait was chosen.
SHORT_STACK, NOT_SAMPLED_STACK = 0xFFFFFFFF, 0xFFFFFFFE

# ns: on the timeline, from at_ns on; weight_ns: what it adds to the weights, count and longest_ns likewise.
PIECE_DTYPE = np.dtype(
    [
        ("stack", "<u4"),
        ("leaf", "<u2"),
        ("status", "u1"),
        ("state", "u1"),
        ("count", "<i8"),
        ("at_ns", "<i8"),
        ("ns", "<i8"),
        ("weight_ns", "<i8"),
        ("longest_ns", "<i8"),
    ]
)


def made_pieces(size: int, **values: Any) -> npt.NDArray[np.void]:
    """So many pieces with these fields; weight_ns and longest_ns are those of ns unless given."""
    pieces = np.zeros(size, PIECE_DTYPE)
    for name, value in values.items():
        pieces[name] = value
    for name in ("weight_ns", "longest_ns"):
        if name not in values:
            pieces[name] = pieces["ns"]
    return pieces


def piece_keys(pieces: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """stack << 32 | leaf << 16 | status << 8 | state"""
    keys = pieces["stack"].astype(np.uint64) << np.uint64(32) | pieces["leaf"].astype(np.uint64) << np.uint64(16)
    return np.asarray(keys | pieces["status"].astype(np.uint64) << np.uint64(8) | pieces["state"].astype(np.uint64))


def wait_pieces(
    waits: npt.NDArray[np.void],
    reasons: npt.NDArray[np.uint16],
    whole_ns: npt.NDArray[np.int64],
    is_first: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    """Two pieces for each row of WAIT_DTYPE, in its order: blocked and runnable.

    whole_ns: how long the wait was blocked that the row is a slice of; it counts where the row is the first of it.
    """
    blocked_ns, runqueue_ns = waits["blocked_ns"].astype(np.int64), waits["runqueue_ns"].astype(np.int64)
    runnable_at = waits["time_ns"].astype(np.int64) - runqueue_ns
    common: dict[str, Any] = {"stack": waits["stack"], "status": waits["status"], "count": is_first}
    blocked = made_pieces(
        len(waits),
        **common,
        leaf=reasons + np.uint16(LEAF_WAIT),
        state=ThreadState.OFF_CPU,
        at_ns=runnable_at - blocked_ns,
        ns=blocked_ns,
        longest_ns=whole_ns,
    )
    values = {"leaf": LEAF_RUNQUEUE, "state": ThreadState.RUNQUEUE, "at_ns": runnable_at, "ns": runqueue_ns}
    return blocked, made_pieces(len(waits), **common, **values)


def cpu_pieces(
    samples: npt.NDArray[np.void],
    bursts: Bursts,
    groups: npt.NDArray[np.int64],
    period_ns: int,
    short_stack: int,
    gil_only: bool = False,
) -> Iterator[npt.NDArray[np.void]]:
    """CPU time by samples, and what is between it: stolen time, and for the timeline time in waits without a row."""
    positions = bursts.positions(samples["time_ns"].astype(np.int64))
    shares = share_cpu_time(positions, bursts.edges, period_ns, groups)
    named = shares.piece_sample >= 0
    # A sample counts once, in its first piece.
    counts = np.zeros(len(named), np.int64)
    counts[np.unique(shares.piece_sample, return_index=True)[1]] = 1
    counts[~named] = 0
    at_ns, stolen_ns, short_ns = bursts.wall_clock(shares.piece_start, shares.piece_length)
    pieces = made_pieces(
        len(named), state=ThreadState.ON_CPU, leaf=LEAF_NONE, count=counts, at_ns=at_ns, ns=shares.piece_length
    )
    pieces["stack"] = NOT_SAMPLED_STACK
    chosen = samples[shares.piece_sample[named]]
    pieces["stack"][named], pieces["status"][named] = chosen["stack"], chosen["status"]
    stolen = pieces.copy()
    stolen["at_ns"] += pieces["ns"]
    stolen["ns"] = stolen["weight_ns"] = stolen["longest_ns"] = stolen_ns
    stolen["state"], stolen["leaf"], stolen["count"] = ThreadState.RUNQUEUE, LEAF_RUNQUEUE, 1
    if gil_only:
        held = np.zeros(len(pieces), np.bool_)
        held[named] = chosen["flags"] & HOLDS_GIL > 0
        yield pieces[held]
        yield stolen[held & (stolen_ns > 0)]
        return
    yield pieces
    yield stolen[stolen_ns > 0]
    yield short_pieces(stolen["at_ns"] + stolen_ns, short_ns, short_stack)
    yield from _idle_bursts(bursts, short_stack)


def _idle_bursts(bursts: Bursts, short_stack: int) -> Iterator[npt.NDArray[np.void]]:
    """Bursts without CPU time: stolen whole, or lost in short waits."""
    idle = np.diff(bursts.edges) == 0
    start_ns, stolen_ns, short_ns = bursts.start_ns[idle], bursts.wall_ns[idle], bursts.short_ns[idle]
    values = {"state": ThreadState.RUNQUEUE, "leaf": LEAF_RUNQUEUE, "stack": NOT_SAMPLED_STACK, "count": 1}
    stolen = made_pieces(len(stolen_ns), **values, at_ns=start_ns, ns=stolen_ns)
    yield stolen[stolen_ns > 0]
    yield short_pieces(start_ns + stolen_ns, short_ns, short_stack)


def short_pieces(at_ns: npt.NDArray[np.int64], ns: npt.NDArray[np.int64], short_stack: int) -> npt.NDArray[np.void]:
    """Time in waits without a row, on the timeline only: which of a thread's waits they were is not known."""
    common = {"stack": short_stack, "state": ThreadState.OFF_CPU, "leaf": LEAF_NONE}
    return made_pieces(len(ns), **common, at_ns=at_ns, ns=ns, weight_ns=0, longest_ns=0)[ns > 0]


class WeightTotals:
    """Pieces of one thread added up by (stack, leaf, status, state)."""

    def __init__(self) -> None:
        self._sums: dict[int, list[int]] = {}  # key -> ns, count, longest

    def add(self, pieces: npt.NDArray[np.void]) -> None:
        """Takes more pieces."""
        keys, inverse = np.unique(piece_keys(pieces), return_inverse=True)
        ns = np.bincount(inverse, weights=pieces["weight_ns"], minlength=len(keys))  # exact below 2**53: 104 days
        counts = np.bincount(inverse, weights=pieces["count"], minlength=len(keys))
        longest = np.zeros(len(keys), np.int64)
        np.maximum.at(longest, inverse, pieces["longest_ns"])
        for key, *values in zip(keys.tolist(), ns.tolist(), counts.tolist(), longest.tolist(), strict=True):
            sums = self._sums.setdefault(key, [0, 0, 0])
            sums[0] += int(values[0])
            sums[1] += int(values[1])
            sums[2] = max(sums[2], values[2])

    def items(self) -> Iterator[tuple[int, int, int, int]]:
        """(key, total ns, count, longest ns) of each that took any time."""
        return ((key, ns, count, longest) for key, (ns, count, longest) in self._sums.items() if ns > 0)
