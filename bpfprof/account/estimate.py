"""The only place where the seen speaks for the unseen.

Waits that were only added up have neither a moment nor a stack. `spread` gives them moments. Of those that were chosen
at random to have a stack each stands for some that were not: `estimated` gives it their time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bpfprof.account.rows import Int64Array
from bpfprof.account.threads import sums_by
from bpfprof.model.reasons import reason_number
from bpfprof.model.samples import UNSAMPLED
from bpfprof.model.spans import How, ThreadState
from bpfprof.model.statuses import Status

# Waits of one thread that were only added up: one row a (thread, state, reason, is_unsampled). count: waits; those of
# RUNQUEUE are the same ones as those of OFF_CPU.
SUM_DTYPE = np.dtype(
    [("thread", "<u4"), ("ns", "<i8"), ("count", "<i8"), ("reason", "<u2"), ("state", "u1"), ("is_unsampled", "?")]
)


def summed(rows: npt.NDArray[np.void], reasons: npt.NDArray[np.uint16], derived_ns: Int64Array) -> npt.NDArray[np.void]:
    """Rows of SUM_DTYPE by thread, from those of SHORT_DTYPE and their reasons.

    derived_ns: of each thread the waits that must have been, of which nothing else is known.
    """
    derived = np.flatnonzero(derived_ns)
    thread = np.concatenate([rows["thread"].astype(np.int64), derived])
    reason = np.concatenate([reasons.astype(np.int64), np.full(len(derived), reason_number("unknown"))])
    unsampled = np.concatenate([rows["flags"] & UNSAMPLED > 0, np.zeros(len(derived), np.bool_)])
    unique, inverse = np.unique(thread << 32 | reason << 8 | unsampled, return_inverse=True)
    none = np.zeros(len(derived), np.int64)
    made = np.zeros((2, len(unique)), SUM_DTYPE)
    for sums, state, name, more in (
        (made[0], ThreadState.OFF_CPU, "blocked_ns", derived_ns[derived]),
        (made[1], ThreadState.RUNQUEUE, "runqueue_ns", none),
    ):
        sums["thread"], sums["reason"], sums["is_unsampled"] = unique >> 32, unique >> 8 & 0xFFFF, unique & 1
        sums["ns"] = sums_by(inverse, np.concatenate([rows[name].astype(np.int64), more]), len(unique))
        sums["state"] = state
    made["count"] = sums_by(inverse, np.concatenate([rows["count"].astype(np.int64), none]), len(unique))
    sums = made[made["ns"] > 0]
    return sums[np.argsort(sums["thread"], kind="stable")]


def spread(gaps_ns: Int64Array, sums: npt.NDArray[np.void]) -> tuple[Int64Array, Int64Array]:
    """(nanoseconds, counts) of each sum in each gap: shape (gaps, sums), in proportion.

    The nanoseconds of a gap sum to it exactly, those of a sum to it as far as whole numbers allow.
    """
    shares = np.asarray(sums["ns"] / int(sums["ns"].sum()))
    passed = np.cumsum(gaps_ns)
    nanoseconds = np.diff(np.rint(passed[:, None] * shares), axis=0, prepend=0).astype(np.int64)
    largest = int(np.argmax(shares))
    nanoseconds[:, largest] += gaps_ns - nanoseconds.sum(axis=1)
    # In tiny gaps rounding can take more than there is: the others give it back.
    for place in np.flatnonzero(nanoseconds[:, largest] < 0).tolist():
        nanoseconds[place] = 0
        nanoseconds[place, largest] = gaps_ns[place]
    fractions = passed[:, None] / max(1, int(passed[-1])) * sums["count"]
    return nanoseconds, np.diff(np.rint(fractions), axis=0, prepend=0).astype(np.int64)


@dataclass(slots=True)
class _Pool:
    """Waits of one thread in one state, for one reason: those without a stack, and what the chosen ones weigh."""

    ns: int = 0
    count: int = 0
    weight_ns: float = 0.0
    weight: float = 0.0
    given_ns: int = 0
    given_count: int = 0
    seen_ns: float = 0.0
    seen: float = 0.0


@dataclass(slots=True)
class _Pools:
    by_key: dict[int, _Pool] = field(default_factory=dict)

    def collect(self, spans: npt.NDArray[np.void]) -> None:
        """Adds up what is to be given, and to whom."""
        keys, chosen, missing = _parts(spans)
        for key in np.unique(keys[chosen | missing]).tolist():
            pool = self.by_key.setdefault(key, _Pool())
            own = missing & (keys == key)
            pool.ns += int(spans["duration_ns"][own].sum())
            pool.count += int(spans["count"][own].sum())
            weight_ns, weight = _weights(spans[chosen & (keys == key)])
            pool.weight_ns += float(weight_ns.sum())
            pool.weight += float(weight.sum())

    def give(self, spans: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """Gives the time of waits without a stack to those that were chosen to stand for them."""
        keys, chosen, missing = _parts(spans)
        for key in np.unique(keys[chosen | missing]).tolist():
            pool = self.by_key[key]
            if not pool.weight_ns or not pool.ns:
                continue
            own = missing & (keys == key)
            spans["stands_for_ns"][own] = spans["count"][own] = 0
            own = chosen & (keys == key)
            weight_ns, weight = _weights(spans[own])
            # Rounded as running totals, so that nothing is lost from block to block.
            pool_ns = np.rint((pool.seen_ns + np.cumsum(weight_ns)) / pool.weight_ns * pool.ns).astype(np.int64)
            spans["stands_for_ns"][own] += np.diff(pool_ns, prepend=pool.given_ns)
            pool.seen_ns, pool.given_ns = (
                pool.seen_ns + float(weight_ns.sum()),
                int(pool_ns[-1:].sum() or pool.given_ns),
            )
            if pool.weight:
                counts = np.rint((pool.seen + np.cumsum(weight)) / pool.weight * pool.count).astype(np.int64)
                spans["count"][own] += np.diff(counts, prepend=pool.given_count).astype(np.uint32)
                pool.seen, pool.given_count = (
                    pool.seen + float(weight.sum()),
                    int(counts[-1:].sum() or pool.given_count),
                )
            spans["how"][own] = How.ESTIMATED
        return spans


def estimated(blocks: Callable[[], Iterator[npt.NDArray[np.void]]]) -> Iterator[npt.NDArray[np.void]]:
    """Spans of one thread as `blocks` gives them (twice the same), with waits chosen at random speaking for others.

    A wait that was chosen as one in k has k - 1 times its own length and number as its weight (the estimator of Horvitz
    and Thompson), and the sums of the thread are exact: the time of all waits in one state for one reason that have no
    stack is shared out by these weights. Where none was chosen they stay what they are, not sampled.
    """
    pools = _Pools()
    for block in blocks():
        pools.collect(block)
    return (pools.give(block) for block in blocks())


def _parts(
    spans: npt.NDArray[np.void],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """(state and reason as one number, which spans were chosen at random, which are of waits that were not)."""
    is_wait = (spans["state"] != ThreadState.ON_CPU) & (spans["reason"] > 0)
    keys = spans["state"].astype(np.int64) << 16 | spans["reason"]
    return keys, is_wait & (spans["one_in"] > 1), is_wait & (spans["status"] == Status.NOT_SAMPLED)


def _weights(spans: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    others = spans["one_in"].astype(np.float64) - 1
    return spans["duration_ns"] * others, spans["count"] * others
