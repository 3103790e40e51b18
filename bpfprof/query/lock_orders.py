"""Threads that wait for a lock while they have another one: deadlocks, and orders of locks that may end in one.

Nothing is guessed. Of a deadlock each thread's holder was read in the process. An order of two locks was seen where
another thread waited for the first lock, so that its holder is known, while that holder waited for the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bpfprof.model.profile import Profile
from bpfprof.query.lock_parts import parts_of
from bpfprof.query.wait_graph import cycles
from bpfprof.query.work import Work

_MOST_CYCLES = 10


@dataclass(frozen=True)
class LockOrder:
    """A thread, a place in Profile.threads, that had one lock and waited for another; both by their numbers in Work.

    frame: the line of the user's own code where it waited, a place in Profile.frames, -1: not known.
    """

    thread: int
    has: int
    wanted: int
    frame: int


def deadlocks(profile: Profile) -> list[list[int]]:
    """Threads, places in Profile.threads, each of which waited for the next at the end, and the last for the first."""
    rows = profile.lock_holders
    return cycles(dict(zip(rows["thread"].tolist(), (rows["holder"].astype(np.int64) - 1).tolist())))


def order_cycles(profile: Profile, work: Work) -> list[list[LockOrder]]:
    """Orders each of which waited for the lock that the next one had, of two threads at least."""
    by_locks: dict[tuple[int, int], list[LockOrder]] = {}
    for order in _orders(profile, work):
        by_locks.setdefault((order.has, order.wanted), []).append(order)
    found: dict[frozenset[int], list[LockOrder]] = {}
    for has, wanted in by_locks:
        path = _shortest(by_locks, wanted, has)
        cycle = _of_several_threads([by_locks[pair] for pair in zip([has, *path], path)]) if path else []
        if cycle and len(found) < _MOST_CYCLES:
            found.setdefault(frozenset(path), cycle)
    return [*found.values()]


def _of_several_threads(choices: list[list[LockOrder]]) -> list[LockOrder]:
    """One of each, not all of one thread; [] where they are."""
    cycle = [orders[0] for orders in choices]
    for place, orders in enumerate(choices):
        if len({order.thread for order in cycle}) > 1:
            break
        cycle[place] = next((order for order in orders if order.thread != cycle[place].thread), cycle[place])
    return cycle if len({order.thread for order in cycle}) > 1 else []


def _shortest(by_locks: Mapping[tuple[int, int], object], begin: int, end: int) -> list[int]:
    """The locks on the way from one to another, both included; [] when there is none."""
    before, queue = {begin: begin}, deque([begin])
    while queue and end not in before:
        lock = queue.popleft()
        for has, wanted in by_locks:
            if has == lock and wanted not in before:
                before[wanted] = lock
                queue.append(wanted)
    if end not in before:
        return []
    path = [end]
    while path[-1] != begin:
        path.append(before[path[-1]])
    return path[::-1]


def _orders(profile: Profile, work: Work) -> list[LockOrder]:
    waits = work.lock_waits[np.lexsort((work.lock_waits["thread"], work.lock_waits["number"]))]
    thread_of = np.array([-1, *(waker.thread for waker in profile.wakers)], np.int64)
    found: dict[tuple[int, int, int], LockOrder] = {}
    for rows in np.split(waits, np.flatnonzero(np.diff(waits["number"])) + 1):
        if not len(rows):
            continue
        holder, _, row, start_ns, ns = parts_of(profile, rows)
        thread = thread_of[holder]
        # It had the lock since this wait began, or since it was given it; before that another one may have had it.
        given = set(zip(rows["thread"].tolist(), (rows["start_ns"] + rows["duration_ns"]).tolist()))
        had_it = start_ns == rows["start_ns"][row]
        had_it |= np.array([pair in given for pair in zip(thread.tolist(), start_ns.tolist())], np.bool_)
        has = int(rows["number"][0])
        for one in np.unique(thread[had_it & (thread >= 0)]).tolist():
            own = waits[(waits["thread"] == one) & (waits["number"] != has)]
            own = own[np.argsort(own["start_ns"], kind="stable")]
            held = had_it & (thread == one)
            # A thread's waits do not overlap.
            first = np.searchsorted(own["start_ns"] + own["duration_ns"], start_ns[held], side="right")
            behind = np.searchsorted(own["start_ns"], (start_ns + ns)[held], side="left")
            for place in sorted({at for pair in zip(first.tolist(), behind.tolist()) for at in range(*pair)}):
                key = one, has, int(own["number"][place])
                found.setdefault(key, LockOrder(*key, int(work.own[own["stack"][place]])))
    return [*found.values()]
