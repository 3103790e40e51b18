"""Spans -> weights: added up by thread, stack, state and reason; and the account of a thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bpfprof.account.threads import sums_by
from bpfprof.model.profile import GIL_ROW_DTYPE, WEIGHT_DTYPE
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_number, reason_text
from bpfprof.profile.filters import wait_lengths

_GIL = reason_number("gil")


def weights_of(spans: npt.NDArray[np.void], stacks: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.void]:
    """Rows of WEIGHT_DTYPE, by (thread, stack, state, reason). stacks: the profile's, one a span."""
    stack_count = int(stacks.max(initial=0)) + 1
    is_wait = spans["state"] == ThreadState.OFF_CPU
    kinds = spans["state"].astype(np.int64) << 16 | np.where(is_wait, spans["reason"], 0)
    keys, inverse = np.unique(
        (spans["thread"].astype(np.int64) * stack_count + stacks) << 18 | kinds, return_inverse=True
    )
    weights = np.zeros(len(keys), WEIGHT_DTYPE)
    weights["thread"], weights["stack"] = np.divmod(keys >> 18, stack_count)
    weights["state"], weights["reason"] = keys >> 16 & 3, keys & 0xFFFF
    weights["count"] = sums_by(inverse, spans["count"], len(keys))
    weights["total_ns"] = sums_by(inverse, spans["stands_for_ns"], len(keys))
    lengths = np.where(spans["state"] == ThreadState.RUNQUEUE, spans["duration_ns"], wait_lengths(spans))
    lengths[spans["how"] == 1] = 0
    np.maximum.at(weights["max_ns"], inverse, lengths.astype(np.uint64))
    return weights


def merged_weights(parts: list[npt.NDArray[np.void]]) -> npt.NDArray[np.void]:
    """Weights of several parts as one; what took no time is left out."""
    rows = np.concatenate([np.zeros(0, WEIGHT_DTYPE), *parts])
    keys = [rows[name] for name in ("reason", "state", "stack", "thread")]
    order = np.lexsort(keys)
    rows = rows[order]
    changed = np.zeros(len(rows), np.bool_)
    changed[:1] = True
    for name in ("thread", "stack", "state", "reason"):
        changed[1:] |= rows[name][1:] != rows[name][:-1]
    first = np.flatnonzero(changed)
    merged = rows[first]
    if len(first):
        for name, add in (("count", np.add), ("total_ns", np.add), ("max_ns", np.maximum)):
            merged[name] = add.reduceat(rows[name], first)
    return merged[merged["total_ns"] > 0]


@dataclass(slots=True)
class ThreadAccount:
    """Sums of the spans of one thread."""

    state_ns: list[int] = field(default_factory=lambda: [0] * len(ThreadState))
    sample_count: int = 0
    wait_count: int = 0
    _by_reason: dict[int, int] = field(default_factory=dict)

    def add(self, spans: npt.NDArray[np.void]) -> None:
        """Takes more spans."""
        for state, ns in enumerate(sums_by(spans["state"], spans["duration_ns"], len(ThreadState)).tolist()):
            self.state_ns[state] += ns
        self.sample_count += int(spans["count"][spans["state"] == ThreadState.ON_CPU].sum())
        waits = spans[spans["state"] == ThreadState.OFF_CPU]
        self.wait_count += int(waits["count"].sum())
        reasons, inverse = np.unique(waits["reason"], return_inverse=True)
        sums = sums_by(inverse, waits["duration_ns"], len(reasons))
        for reason, ns in zip(reasons.tolist(), sums.tolist(), strict=True):
            self._by_reason[reason] = self._by_reason.get(reason, 0) + ns

    def by_reason(self) -> tuple[tuple[str, int], ...]:
        """(reason, nanoseconds blocked), most first."""
        ordered = sorted(self._by_reason.items(), key=lambda item: (-item[1], item[0]))
        return tuple((reason_text(reason), ns) for reason, ns in ordered if ns)


@dataclass(slots=True)
class GilTotals:
    """Waits for a GIL by waiter, holder and the holder's stack (of the recording)."""

    _sums: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def add(self, spans: npt.NDArray[np.void]) -> None:
        """Takes more spans."""
        rows = spans[(spans["state"] == ThreadState.OFF_CPU) & (spans["reason"] == _GIL)]
        behind, inverse = np.unique(rows["holder"].astype(np.int64) << 32 | rows["holder_stack"], return_inverse=True)
        pairs, codes = np.unique(rows["thread"].astype(np.int64) * max(1, len(behind)) + inverse, return_inverse=True)
        for pair, ns in zip(pairs.tolist(), sums_by(codes, rows["stands_for_ns"], len(pairs)).tolist(), strict=True):
            thread, place = divmod(pair, len(behind))
            key = (thread, int(behind[place]) >> 32, int(behind[place]) & 0xFFFFFFFF)
            self._sums[key] = self._sums.get(key, 0) + ns

    def rows(self) -> npt.NDArray[np.void]:
        """Rows of GIL_ROW_DTYPE, with stacks of the recording."""
        found: Iterator[tuple[int, int, int, int]] = (
            (thread, holder - 1, stack, ns) for (thread, holder, stack), ns in sorted(self._sums.items()) if ns
        )
        return np.array(list(found), GIL_ROW_DTYPE)
