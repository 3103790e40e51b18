"""The only place where the seen speaks for the unseen.

Waits that were only added up have neither a moment nor a stack. `spread` gives them moments. Of those that were chosen
at random to have a stack each stands for some that were not: `estimated` gives it their time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.threads import Int64Array
from bpfprof.model.grouping import each_once, group_numbers, grouped, sums_by
from bpfprof.model.rows import picked
from bpfprof.model.samples import SHORT_DTYPE, UNSAMPLED
from bpfprof.model.spans import How, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.model.statuses import Status

_MOST_SUMS = 64
LAID_GAPS = 4  # for each sum
# Thread, state and reason as one number, spans that were chosen at random, spans of waits that were not.
_Pool = tuple[int, npt.NDArray[np.intp], npt.NDArray[np.intp]]
_MOST_HELD = 1 << 19  # rows; more are made twice

# Waits of one thread that were only added up: one row a (thread, state, reason, is_unsampled). count: waits; those of
# RUNQUEUE are the same ones as those of OFF_CPU.
SUM_DTYPE = np.dtype(
    [("thread", "<u4"), ("ns", "<i8"), ("count", "<i8"), ("reason", "<u2"), ("state", "u1"), ("is_unsampled", "?")]
)

_OF_KIND = ("thread", "syscall", "task_state", "fd_kind", "flags", "arg")
_ONE_DTYPE = np.dtype([(name, "<i8" if name == "count" else SHORT_DTYPE[name]) for name in SHORT_DTYPE.names or ()])


def alike_as_one(rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Rows of SHORT_DTYPE, those of one thread and kind as one, in any order; each has had time blocked, or none."""
    order, begin = grouped([*(rows[name] for name in _OF_KIND), rows["blocked_ns"] > 0])
    found = np.zeros(len(begin), _ONE_DTYPE)
    for name in _OF_KIND:
        found[name] = rows[name][order[begin]]
    for name in ("blocked_ns", "runqueue_ns", "count"):
        found[name] = np.add.reduceat(rows[name].astype(found.dtype[name])[order], begin) if len(begin) else 0
    return found


def without_preemptions(rows: npt.NDArray[np.void], thread_count: int) -> tuple[npt.NDArray[np.void], Int64Array]:
    """(rows as above without the time in which others had a thread's CPU while it ran its own code, that time of
    each thread).

    It is at a random moment, as when an interrupt has the CPU: what the thread runs around it speaks for it. Not in
    a system call: who wakes another thread is preempted by it. Nor after `BP_LONG_WAIT_NS`, for that has a row.
    """
    is_taken = (rows["task_state"] == 0) & (rows["syscall"] < 0)
    taken_ns = sums_by(rows["thread"][is_taken], rows["runqueue_ns"][is_taken], thread_count)
    rest = picked(rows, ~is_taken | (rows["blocked_ns"] > 0))
    rest["runqueue_ns"][(rest["task_state"] == 0) & (rest["syscall"] < 0)] = 0
    return rest, taken_ns


def summed(rows: npt.NDArray[np.void], reasons: npt.NDArray[np.uint16]) -> npt.NDArray[np.void]:
    """Rows of SUM_DTYPE by thread, from these and their reasons."""
    kinds = reasons.astype(np.int64) << 8 | (rows["flags"] & UNSAMPLED > 0)
    unique, inverse = np.unique(rows["thread"].astype(np.int64) << 32 | kinds, return_inverse=True)
    made = np.zeros((2, len(unique)), SUM_DTYPE)
    made["thread"], made["reason"], made["is_unsampled"] = unique >> 32, unique >> 8 & 0xFFFF, unique & 1
    made["count"] = sums_by(inverse, rows["count"], len(unique))
    states = (ThreadState.OFF_CPU, "blocked_ns"), (ThreadState.RUNQUEUE, "runqueue_ns")
    for sums, (state, name) in zip(made, states):
        sums["state"], sums["ns"] = state, sums_by(inverse, rows[name], len(unique))
    sums = made[made["ns"] > 0]
    return _fewer(sums[np.argsort(sums["thread"], kind="stable")])


def _fewer(sums: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """At most so many of a thread, as all of them are in each of its gaps: small ones become an unknown reason."""
    if not len(sums) or np.bincount(sums["thread"]).max() <= _MOST_SUMS:
        return sums
    order = np.lexsort((-sums["ns"], sums["thread"]))
    rank = np.arange(len(sums)) - np.searchsorted(sums["thread"], sums["thread"])
    sums["reason"][order[rank >= _MOST_SUMS]] = reason_number("unknown")
    first, number = group_numbers(sums[name] for name in ("thread", "state", "reason", "is_unsampled"))
    fewer = sums[first]
    for name in ("ns", "count"):
        fewer[name] = sums_by(number, sums[name], len(first))
    return fewer[np.argsort(fewer["thread"], kind="stable")]


def spread(
    gaps_ns: Int64Array, sums: npt.NDArray[np.void], before_ns: int = 0, all_ns: int = 0
) -> tuple[Int64Array, Int64Array]:
    """(nanoseconds, counts) of each sum in each gap: shape (gaps, sums), in proportion.

    The nanoseconds of a gap sum to it exactly, those of a sum to it as far as whole numbers allow. before_ns: of gaps
    before these; all_ns: of all gaps, 0: there are no more than these.
    """
    shares = np.asarray(sums["ns"] / int(sums["ns"].sum()))
    passed = np.append(before_ns, before_ns + np.cumsum(gaps_ns))[:, None]
    nanoseconds = np.diff(np.rint(passed * shares), axis=0).astype(np.int64)
    largest = int(np.argmax(shares))
    nanoseconds[:, largest] += gaps_ns - nanoseconds.sum(axis=1)
    # In tiny gaps rounding can take more than there is: the others give it back, and get it in the longest one.
    tiny = np.flatnonzero(nanoseconds[:, largest] < 0)
    if len(tiny):
        given = nanoseconds[tiny].sum(axis=0)
        nanoseconds[tiny] = 0
        nanoseconds[tiny, largest] = gaps_ns[tiny]
        longest, lacking = int(np.argmax(gaps_ns)), given - nanoseconds[tiny].sum(axis=0)
        if (nanoseconds[longest] + lacking >= 0).all():
            nanoseconds[longest] += lacking
    fractions = passed / max(1, all_ns or int(passed[-1, 0])) * sums["count"]
    return nanoseconds, np.diff(np.rint(fractions), axis=0).astype(np.int64)


def spread_by_thread(
    gaps_ns: Int64Array,
    sums: npt.NDArray[np.void],
    begin: npt.NDArray[np.intp],
    before_ns: Int64Array,
    all_ns: Int64Array,
) -> tuple[Int64Array, Int64Array]:
    """spread() of several threads, each of which has one gap: (nanoseconds, counts) of each sum.

    gaps_ns, before_ns, all_ns: of each thread; begin: where in `sums`, which are by thread, its own begin.
    """
    thread = np.repeat(np.arange(len(begin)), np.diff(np.append(begin, len(sums))))
    shares = sums["ns"] / np.add.reduceat(sums["ns"], begin)[thread]
    until_ns = before_ns + gaps_ns
    nanoseconds = (np.rint(until_ns[thread] * shares) - np.rint(before_ns[thread] * shares)).astype(np.int64)
    largest = np.flatnonzero(shares == np.maximum.reduceat(shares, begin)[thread])
    largest = largest[np.searchsorted(thread[largest], np.arange(len(begin)))]
    nanoseconds[largest] += gaps_ns - np.add.reduceat(nanoseconds, begin)
    is_tiny = nanoseconds[largest] < 0
    nanoseconds[is_tiny[thread]] = 0
    nanoseconds[largest[is_tiny]] = gaps_ns[is_tiny]
    parts = (np.rint((ns / np.maximum(1, all_ns))[thread] * sums["count"]) for ns in (before_ns, until_ns))
    return nanoseconds, np.asarray(np.diff(list(parts), axis=0)[0].astype(np.int64))


def shared_out(
    left_ns: Int64Array, sums: npt.NDArray[np.void], preempted_ns: int
) -> list[tuple[npt.NDArray[np.void], Int64Array]]:
    """(rows of SUM_DTYPE, as a thread's array of one: in preemptions) of each stretch of a thread's time.

    left_ns: how much of each they can be in; sums, preempted_ns: of the thread.
    """
    all_ns, parts_ns = int(sums["ns"].sum()) + preempted_ns, left_ns.copy()
    if left_ns.sum() <= all_ns:
        parts_ns[-1] += all_ns - left_ns.sum()
    else:
        parts_ns = _in_proportion(all_ns, left_ns)
    preempted = _in_proportion(preempted_ns, parts_ns)
    added, found = parts_ns - preempted, []
    ns, counts = spread(added, sums) if len(sums) else (np.zeros((len(added), 0), np.int64),) * 2
    for number in range(len(added)):
        its = sums[: len(sums) if added[number] else 0].copy()
        its["ns"], its["count"] = ns[number][: len(its)], counts[number][: len(its)]
        found.append((its, preempted[number : number + 1]))
    return found


def _in_proportion(total_ns: int, parts_ns: Int64Array) -> Int64Array:
    """A total in parts, in whole nanoseconds."""
    passed = np.cumsum(parts_ns)
    return np.asarray(np.diff(np.rint(passed * (total_ns / max(1, int(passed[-1])))).astype(np.int64), prepend=0))


def spread_pieces(
    gaps_ns: Int64Array, sums: npt.NDArray[np.void], before_ns: int, all_ns: int
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]:
    """spread() as (gap, sum, nanoseconds into the gap, nanoseconds, count) of its pieces."""
    nanoseconds, counts = spread(gaps_ns, sums, before_ns, all_ns)
    gap, which = np.nonzero(nanoseconds)
    into_ns = np.cumsum(nanoseconds, axis=1) - nanoseconds
    return gap, which, into_ns[gap, which], nanoseconds[gap, which], counts[gap, which]


def laid(
    gaps_ns: Int64Array, sums: npt.NDArray[np.void], before_ns: int, all_ns: int
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]:
    """(gap, sum, nanoseconds into the gap, nanoseconds, count) of pieces, as spread(), but one sum behind the other
    in some gaps together.

    So they are as few as gaps and sums together, and where in these gaps each sum is, is not as even.
    """
    together = np.add.reduceat(gaps_ns, np.arange(0, len(gaps_ns), LAID_GAPS * len(sums)))
    ns, counts = spread(together, sums, before_ns, all_ns)
    of_gaps, of_sums = np.cumsum(gaps_ns), np.cumsum(ns)
    borders = each_once(np.concatenate([[0], of_gaps, of_sums]))
    begin = borders[:-1]
    gap, which = np.searchsorted(of_gaps, begin, side="right"), np.searchsorted(of_sums, begin, side="right")
    count = np.zeros(len(begin), np.int64)
    first = np.flatnonzero(np.diff(which, prepend=-1))
    count[first] = counts.ravel()[which[first]]
    return gap, which % len(sums), begin - (of_gaps - gaps_ns)[gap], np.diff(borders), count


def estimated(blocks: Callable[[], Iterator[npt.NDArray[np.void]]]) -> Iterator[npt.NDArray[np.void]]:
    """Spans of threads as `blocks` gives them (each time the same), with waits chosen at random speaking for others.

    A wait that was chosen as one in k has k - 1 times its own length and number as its weight (the estimator of Horvitz
    and Thompson), and the sums of each thread are exact: the time of all waits in one state for one reason that have no
    stack is shared out by these weights. Where none was chosen they stay what they are, not sampled.
    """
    pools: dict[int, npt.NDArray[np.float64]] = {}
    held: list[tuple[npt.NDArray[np.void], list[_Pool]]] = []
    row_count = 0
    for block in blocks():
        row_count += len(block)
        its_pools = list(_pools(block))
        held = [*held, (block, its_pools)] if row_count <= _MOST_HELD else []
        for key, chosen, missing in its_pools:
            pool = pools.setdefault(key, np.zeros((2, 3)))  # a row each of _SHARED: to give, all weights, given
            pool += [[block[name][missing].sum(), _weights(block, chosen, name).sum(), 0] for name in _SHARED]
    for block, its_pools in held if row_count <= _MOST_HELD else ((block, list(_pools(block))) for block in blocks()):
        for key, chosen, missing in its_pools:
            pool = pools[key]
            if pool[0, :2].all():
                block["stands_for_ns"][missing] = block["count"][missing] = 0
                for name, column, row in zip(_SHARED, ("stands_for_ns", "count"), pool):
                    total, weight, given = row
                    # Running totals are rounded, so that nothing is lost from block to block.
                    ends = given + np.cumsum(_weights(block, chosen, name)) * (total / max(weight, 1))
                    block[column][chosen] += np.diff(np.rint(ends), prepend=np.rint(given)).astype(block.dtype[column])
                    row[2] = ends[-1] if len(ends) else given
                block["how"][chosen] = How.ESTIMATED
        yield block


_SHARED = ("duration_ns", "count")  # of the waits without a stack


def _pools(spans: npt.NDArray[np.void]) -> Iterator[_Pool]:
    is_wait = (spans["state"] != ThreadState.ON_CPU) & (spans["reason"] > 0)
    chosen, missing = is_wait & (spans["one_in"] > 1), is_wait & (spans["status"] == Status.NOT_SAMPLED)
    places = np.flatnonzero(chosen | missing)
    keys = spans["thread"][places].astype(np.int64) << 24 | spans["state"][places].astype(np.int64) << 16
    keys |= spans["reason"][places]
    order = np.argsort(keys, kind="stable")
    places, keys = places[order], keys[order]
    for pool in np.split(np.arange(len(keys)), np.flatnonzero(np.diff(keys)) + 1):
        if len(pool):
            of_pool = places[pool]
            yield int(keys[pool[0]]), of_pool[chosen[of_pool]], of_pool[missing[of_pool]]


def _weights(spans: npt.NDArray[np.void], chosen: npt.NDArray[np.intp], name: str) -> npt.NDArray[np.float64]:
    return np.asarray(spans[name][chosen] * (spans["one_in"][chosen].astype(np.float64) - 1))
