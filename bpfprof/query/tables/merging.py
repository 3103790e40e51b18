"""Threads of a Profile and their work -> fewer: those of one role as one, processes of a pool by their command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.model.profile import EVENT_WEIGHT_DTYPE, WEIGHT_DTYPE, Profile, ThreadTime
from bpfprof.profile.weights import merged
from bpfprof.query.code.folded_names import folded_name
from bpfprof.query.code.functions import Ints
from bpfprof.query.threads.roles import roles_of
from bpfprof.query.work.table import Work, work_of

MANY = 8  # threads: of more of them a view that folds by itself shows roles
_SHORT = 0.01  # of the time of what lived longest
_FEW_SHORT = 3  # processes that lived so short: fewer are no crowd
_SUMMED = ("on_cpu_ns", "runqueue_ns", "off_cpu_ns", "sample_count", "wait_count", "overlap_ns")


@dataclass(frozen=True)
class MergedThreads:
    """group_of: for each thread of the profile the place of what it is part of in `threads`.

    short: the place of what processes that lived short are folded to, -1: none are.
    """

    threads: tuple[ThreadTime, ...]
    group_of: Ints
    short: int = -1


def merged_threads(profile: Profile, work: Work, merge: str, folds_short: bool = False) -> MergedThreads:
    """merge: one of MERGES. folds_short: processes that lived short are one, if there are several."""
    count = len(profile.threads)
    short = short_processes(profile.threads) if folds_short else set()
    if merge == "role":
        seen = [role.threads for role in roles_of(profile, work)]
        groups = [*seen, *[[index] for index in sorted({*range(count)} - {index for group in seen for index in group})]]
    elif merge == "process":
        by_name: dict[str, list[int]] = {}
        for index, thread in enumerate(profile.threads):
            by_name.setdefault(thread.process_name, []).append(index)
        groups = [*by_name.values()]
    else:
        groups = [[index] for index in range(count)]
    groups = [[index for index in group if profile.threads[index].pid not in short] for group in groups]
    groups = [group for group in groups if group]
    pids = _pids_by_name(profile.threads, short)
    threads = [_together(profile.threads, group, merge, pids) for group in groups]
    of_short = [index for index, thread in enumerate(profile.threads) if thread.pid in short]
    if of_short:
        groups.append(of_short)
        threads.append(_short(profile.threads, of_short, len(short)))
    group_of = np.zeros(count, np.int64)
    for number, group in enumerate(groups):
        group_of[group] = number
    return MergedThreads(tuple(threads), group_of, len(groups) - 1 if of_short else -1)


def with_merged_threads(profile: Profile, merge: str) -> Profile:
    """The profile of merged threads, without its spans, which several do at the same time; as it is for none or "".

    Raises ValueError without spans.
    """
    if merge in ("", "none"):
        return profile
    threads = merged_threads(profile, work_of(profile), merge)
    weights, events = profile.weights.copy(), profile.event_weights.copy()
    for rows in (weights, events):
        rows["thread"] = threads.group_of[rows["thread"]] if len(rows) else 0
    return replace(
        profile,
        threads=threads.threads,
        weights=merged(WEIGHT_DTYPE, [weights]),
        event_weights=merged(EVENT_WEIGHT_DTYPE, [events]),
        spans=None,
    )


def short_processes(threads: Sequence[ThreadTime]) -> set[int]:
    """Those whose threads all lived for less than a hundredth of the longest; none if they are few."""
    lived: dict[int, int] = {}
    for thread in threads:
        lived[thread.pid] = max(lived.get(thread.pid, 0), thread.wall_ns)
    short = {pid for pid, ns in lived.items() if 0 < ns < _SHORT * max(lived.values())}
    return short if len(short) >= _FEW_SHORT else set()


def _pids_by_name(threads: Sequence[ThreadTime], short: set[int]) -> dict[str, set[int]]:
    pids: dict[str, set[int]] = {}
    for thread in threads:
        if thread.pid not in short:
            pids.setdefault(thread.process_name, set()).add(thread.pid)
    return pids


def _together(threads: Sequence[ThreadTime], group: Sequence[int], merge: str, pids: dict[str, set[int]]) -> ThreadTime:
    """Their sums, under a name for all. pids: of the processes of each name."""
    first = threads[group[0]]
    if merge == "none":
        return first
    names = [threads[index].thread_name for index in group]
    name = folded_name(names) if merge == "role" or len(group) == 1 else "all"
    return replace(_summed(threads, group), thread_name=name, process_count=len(pids[first.process_name]))


def _short(threads: Sequence[ThreadTime], group: Sequence[int], process_count: int) -> ThreadTime:
    names = Counter(threads[index].process_name for index in group)
    name = "short: " + ", ".join(name for name, _ in names.most_common(3)) + ", …" * (len(names) > 3)
    return replace(_summed(threads, group), process_name=name, thread_name="all", process_count=process_count)


def _summed(threads: Sequence[ThreadTime], group: Sequence[int]) -> ThreadTime:
    """Wall time is that of all of them, one after the other."""
    members = [threads[index] for index in group]
    reasons: Counter[str] = Counter()
    for thread in members:
        reasons.update(dict(thread.off_by_reason))
    return replace(
        members[0],
        first_ns=0,
        last_ns=sum(thread.wall_ns for thread in members),
        off_by_reason=tuple(reasons.most_common()),
        thread_count=len(members),
        **{name: sum(getattr(thread, name) for thread in members) for name in _SUMMED},
    )
