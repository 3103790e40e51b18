"""A Profile with its waits -> groups of waits: how many, how long, who waited and who ended it."""

from __future__ import annotations

from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.grouping import Total, totals_of
from bpfprof.model.profile import Profile
from bpfprof.model.rows import picked
from bpfprof.model.states import reason_number
from bpfprof.query.code.functions import Ints, function_of_frames, merged_stacks, owner_functions, wait_owners
from bpfprof.query.tables.merging import MergedThreads
from bpfprof.query.threads.containers import container_label
from bpfprof.query.waits.chains import WokenBy, alike_wakers, holders_in, woken_by
from bpfprof.query.work.waits import Waits, lock_owners, waits_of

_FILE_LOCK = reason_number("file-lock")
_OF_WORK = [reason_number(word) for word in ("disk", "gil")]  # whoever waits so has something to do
_OF_FUNCTIONS = ("stack", "function")  # groups that have a name of one


@dataclass(frozen=True)
class WaitGroup:
    """Waits that have something in common. Shares are by time, most first.

    total_ns and count include the waits that rows stand for; each of those counts as one of its row's length in what
    follows. p50_ns, p99_ns: the wait below or at which so many of them are (nearest rank). buckets: number of waits
    whose duration lies in [2**i, 2**(i+1)) microseconds, from i = first_bucket on; below a microsecond they count for
    i = 0. Where no length is known, buckets is empty and p50_ns, p99_ns, min_ns, max_ns are 0.
    stacks, functions: places in Profile.stacks and Profile.frames; threads: in Profile.threads; reasons: model.states.
    objects: what descriptors were of, places in Profile.objects, -1: no descriptor, or not known.
    lock and waker are as in WAIT_ROW_DTYPE if they were grouped by them, else 0.
    """

    is_idle: bool
    total_ns: int
    count: int
    p50_ns: int
    p99_ns: int
    min_ns: int
    max_ns: int
    first_bucket: int
    buckets: tuple[int, ...]
    threads: tuple[Total, ...]
    reasons: tuple[Total, ...]
    functions: tuple[Total, ...]
    stacks: tuple[Total, ...]
    lock: int
    waker: int
    waker_count: int
    woken_by: tuple[WokenBy, ...]
    holders: tuple[Total, ...]
    objects: tuple[Total, ...]

    @property
    def mean_ns(self) -> int:
        """Of the durations, rounded down; the end of a wait that began before a window has no count."""
        return self.total_ns // max(1, self.count)


@dataclass(frozen=True)
class WaitGroups:
    """The groups with most time, most first (by_weight), and those of idle waits apart.

    total_ns and idle_ns are of all groups, also those beyond the limit;
    hidden_idle_ns: of idle waits that were left out. without_lock_ns: of waits that could not be grouped by lock: they
    have none.
    """

    by: str
    groups: tuple[WaitGroup, ...]
    total_ns: int
    group_count: int
    idle: tuple[WaitGroup, ...]
    idle_ns: int
    idle_group_count: int
    hidden_idle_ns: int
    without_lock_ns: int


@dataclass(frozen=True)
class _Context:
    profile: Profile
    waits: Waits
    by: str
    functions: Ints  # of each stack, as owner_functions()
    owners: Ints  # as wait_owners()
    wakers: Ints  # of each its thread
    alike: Ints  # as alike_wakers()
    waker_depth: int
    merged: MergedThreads | None


def group_waits(
    profile: Profile,
    by: str,
    limit: int,
    waker_depth: int = 2,
    merge_lines: bool = False,
    hide_idle: bool = False,
    with_idle: bool = False,
    idle_threads: npt.NDArray[np.bool_] | None = None,
    merged: MergedThreads | None = None,
) -> WaitGroups:
    """By stack, reason, thread, container, function, waker or lock; at most `limit` groups, and as many idle ones.

    with_idle: idle waits are like others. idle_threads: whose waits are idle, too. merged: threads that count as one.
    Raises ValueError without spans.
    """
    waits = waits_of(profile)
    if idle_threads is not None:
        waits.rows["is_idle"] |= idle_threads[waits.rows["thread"]] & ~np.isin(waits.rows["reason"], _OF_WORK)
    waits.rows["is_idle"] &= not with_idle
    owners = np.array(wait_owners(profile.frames, profile.stacks), np.int64)
    wakers = np.array([waker.thread for waker in profile.wakers], np.int64)
    functions, alike = owner_functions(profile.frames, owners), alike_wakers(profile)
    context = _Context(profile, waits, by, functions, owners, wakers, alike, waker_depth, merged)
    rows = waits.rows
    total_ns = rows["total_ns"]
    hidden_idle_ns = int(total_ns[rows["is_shown"] & rows["is_idle"]].sum()) if hide_idle else 0
    places = np.flatnonzero(rows["is_shown"] & ~rows["is_idle"] if hide_idle else rows["is_shown"])
    keys = _keys(context, places, merge_lines)
    without_lock_ns = int(total_ns[places[keys < 0]].sum())
    places, keys = places[keys >= 0], keys[keys >= 0]
    keys = keys * 2 + rows["is_idle"][places]
    order = np.argsort(keys, kind="stable")
    places, keys = places[order], keys[order]
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    ends = np.append(firsts[1:], len(keys))
    totals = np.add.reduceat(total_ns[places], firsts) if len(firsts) else np.zeros(0, np.int64)
    is_idle = keys[firsts] % 2 == 1
    is_unnamed = (functions[rows["stack"][places[firsts]]] < 0) & (by in _OF_FUNCTIONS)
    weights = by_weight(totals, is_unnamed)
    active, idle = (np.flatnonzero(each) for each in (~is_idle, is_idle))
    best = [each[np.lexsort((places[firsts[each]], -weights[each]))][:limit].tolist() for each in (active, idle)]
    shown = [places[firsts[number] : ends[number]] for number in (*best[0], *best[1])]
    groups = tuple(_group(context, *each) for each in zip(shown, waits.lengths(shown)))
    return WaitGroups(
        by,
        groups[: len(best[0])],
        int(totals[active].sum()),
        len(active),
        groups[len(best[0]) :],
        int(totals[idle].sum()),
        len(idle),
        hidden_idle_ns,
        without_lock_ns,
    )


def by_weight(total: Any, is_unnamed: Any) -> Any:
    """What rows go by, most first: one without a function, where nobody can look, counts by half."""
    return total >> is_unnamed


def _keys(context: _Context, places: Ints, merge_lines: bool) -> Ints:
    """A number from 0 on for each row, the same for rows of one group; -1: it is in none."""

    def of(name: str) -> Ints:
        column = context.waits.rows[name][places]  # rows are wide, and all of them are asked for
        return np.asarray(column if name == "lock" else column.astype(np.int64))

    if context.by == "thread" and context.merged:
        return np.asarray(context.merged.group_of[of("thread")])
    if context.by in ("reason", "thread", "waker"):
        return of(context.by)
    if context.by == "container":
        labels = [container_label(thread) for thread in context.profile.threads] or [""]
        return np.asarray(np.unique(labels, return_inverse=True)[1][of("thread")])
    stacks = of("stack")
    if context.by == "function":
        return context.functions[stacks] + 1
    if context.by == "lock":
        pids = np.array([int(thread.pid) for thread in context.profile.threads] or [0], np.int64)
        is_of_file = of("reason") == _FILE_LOCK  # which all processes share, and `lock` is the place of a range
        owners = np.where(is_of_file, -of("object"), lock_owners(of("lock"), pids[of("thread")]))
        keys = _combined(of("lock"), owners, context.functions[stacks])
        keys[np.where(is_of_file, of("object"), of("lock")) == 0] = -1
        return keys
    if merge_lines:
        merged = function_of_frames(context.profile.frames)
        stacks = merged_stacks(merged, context.profile.stacks)[stacks]
    return _combined(of("reason"), stacks)


def _combined(*columns: npt.NDArray[np.generic]) -> Ints:
    """One number for each row, the same for rows that are alike in all columns."""
    keys = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        # Numbered anew each time, so that the product of the counts cannot overflow.
        keys = np.unique(keys * len(values) + codes, return_inverse=True)[1]
    return keys.astype(np.int64)


def _group(context: _Context, places: Ints, lengths: tuple[Ints, npt.NDArray[np.float64]]) -> WaitGroup:
    """lengths: of it, as Waits.lengths() gives them."""
    rows = context.waits.rows

    def shares(name: str) -> tuple[Total, ...]:
        return totals_of(rows[name][places], ns)

    ns, functions = rows["total_ns"][places], context.functions[rows["stack"][places]]
    in_group = np.zeros(len(rows), np.bool_)
    in_group[places] = True
    held = picked(context.waits.held, in_group[context.waits.held_by])
    wakers, first = np.unique(rows["waker"][places]), int(places[0])
    return WaitGroup(
        is_idle=bool(rows["is_idle"][first]),
        total_ns=int(ns.sum()),
        count=int(rows["count"][places].sum()),
        **_lengths(*lengths),
        threads=shares("thread"),
        reasons=shares("reason"),
        functions=totals_of(functions, ns),
        stacks=shares("stack"),
        lock=int(rows["lock"][first]) if context.by == "lock" else 0,
        waker=int(rows["waker"][first]) if context.by == "waker" else 0,
        waker_count=int((wakers > 0).sum()),
        woken_by=woken_by(context.waits, context.wakers, context.functions, context.alike, places, context.waker_depth),
        holders=holders_in(
            held["holder"].astype(np.int64) - 1,
            held["holder_stack"],
            held["stands_for_ns"],
            context.functions,
            context.owners,
        ),
        objects=totals_of(rows["object"][places].astype(np.int64) - 1, ns),
    )


def _lengths(lengths: Ints, until: npt.NDArray[np.float64]) -> dict[str, Any]:
    """What WaitGroup says of how long its waits were blocked."""
    first_bucket, buckets = _histogram(lengths, until)
    return {
        "p50_ns": _percentile(lengths, until, 50),
        "p99_ns": _percentile(lengths, until, 99),
        "min_ns": int(lengths[0]) if len(lengths) else 0,
        "max_ns": int(lengths[-1]) if len(lengths) else 0,
        "first_bucket": first_bucket,
        "buckets": buckets,
    }


def _percentile(ordered: Ints, until: npt.NDArray[np.float64], percent: int) -> int:
    """Nearest rank of values, each and those before it are there so many times; 0 of none."""
    if not len(ordered):
        return 0
    rank = -(-round(float(until[-1])) * percent // 100)
    return int(ordered[np.searchsorted(until[:-1], rank - 0.5)])


def _histogram(ordered: Ints, until: npt.NDArray[np.float64]) -> tuple[int, tuple[int, ...]]:
    """(first bucket, how many values there are in each, of which each and those before it are there so many times)"""
    if not len(ordered):
        return 0, ()
    first, last = (max(ns // 1000, 1).bit_length() - 1 for ns in (int(ordered[0]), int(ordered[-1])))
    ends = np.append(np.searchsorted(ordered, np.int64(1000) << np.arange(first + 1, last + 1)), len(ordered))
    return first, tuple(np.rint(np.diff(until[ends - 1], prepend=0)).astype(np.int64).tolist())
