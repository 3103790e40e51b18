"""Threads that wait for a lock while they have another one: deadlocks, and orders of locks that may end in one.

Nothing is guessed. Of a deadlock each thread's holder was read in the process. An order of two locks was seen where
another thread waited for the first lock, so that its holder is known, while that holder waited for the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.model.profile import Profile
from bpfprof.model.rows import picked
from bpfprof.query.code.functions import Ints
from bpfprof.query.waits.lock_parts import parts_of
from bpfprof.query.waits.wait_graph import cycles
from bpfprof.query.work.table import Work

_MOST_CYCLES = 10
# Of programs that take their locks in thousands of orders not all are looked at.
_MOST_ORDERS, _MOST_SEARCHED = 1 << 14, 1 << 9


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
    """Threads, places in Profile.threads, each of which waited for the next at the end, and the last for the first.

    A thread that waits for itself is alone. At least one of them is shown, and that to when it was looked at.
    """
    rows = profile.lock_holders[profile.lock_holders["has_end"] == 0]
    last_ns = np.array([thread.last_ns for thread in profile.threads] or [0], np.int64)
    rows = rows[(last_ns == 0)[rows["thread"]] | (last_ns[rows["thread"]] >= rows["time_ns"])]
    found = cycles(dict(zip(rows["thread"].tolist(), (rows["holder"].astype(np.int64) - 1).tolist())))
    return [cycle for cycle in found if last_ns[cycle].any()]


def deadlock_frame(profile: Profile, work: Work, cycle: Sequence[int]) -> int:
    """The line of the user's own code where the first thread of a deadlock waits that is known, -1: none is."""
    assert profile.spans is not None
    for thread in cycle:
        begin, end = np.searchsorted(profile.spans["thread"], (thread, thread + 1)).tolist()
        frame = int(work.own[int(profile.spans["stack"][end - 1])]) if end > begin else -1
        if frame >= 0:
            return frame
    return -1


@dataclass(frozen=True)
class OrderCycles:
    """cycles: orders each of which waited for the lock that the next one had, of two threads at least.

    unseen_locks: of how many not all orders were looked at; unfollowed: pairs of locks whose cycles were not looked
    for; more: further cycles of other locks.
    """

    cycles: list[list[LockOrder]]
    unseen_locks: int
    unfollowed: int
    more: int


def order_cycles(profile: Profile, work: Work) -> OrderCycles:
    """Those that were seen in the recording, up to a limit."""
    by_locks: dict[tuple[int, int], list[LockOrder]] = {}
    orders, unseen_locks = _orders(profile, work)
    for order in orders:
        by_locks.setdefault((order.has, order.wanted), []).append(order)
    found: dict[frozenset[int], list[LockOrder]] = {}
    behind: dict[int, list[int]] = {}
    for has, wanted in by_locks:
        behind.setdefault(has, []).append(wanted)
    for has, wanted in islice(by_locks, _MOST_SEARCHED):
        path = _shortest(behind, wanted, has)
        cycle = _of_several_threads([by_locks[pair] for pair in zip([has, *path], path)]) if path else []
        if cycle:
            found.setdefault(frozenset(path), cycle)
    cycles, unfollowed = [*found.values()], max(0, len(by_locks) - _MOST_SEARCHED)
    return OrderCycles(cycles[:_MOST_CYCLES], unseen_locks, unfollowed, max(0, len(cycles) - _MOST_CYCLES))


def _of_several_threads(choices: list[list[LockOrder]]) -> list[LockOrder]:
    """One of each, not all of one thread; [] where they are."""
    cycle = [orders[0] for orders in choices]
    for place, orders in enumerate(choices):
        if len({order.thread for order in cycle}) > 1:
            break
        cycle[place] = next((order for order in orders if order.thread != cycle[place].thread), cycle[place])
    return cycle if len({order.thread for order in cycle}) > 1 else []


def _shortest(behind: Mapping[int, list[int]], begin: int, end: int) -> list[int]:
    """The locks on the way from one to another, both included; [] when there is none."""
    before, queue = {begin: begin}, deque([begin])
    while queue and end not in before:
        lock = queue.popleft()
        for wanted in behind.get(lock, ()):
            if wanted not in before:
                before[wanted] = lock
                queue.append(wanted)
    if end not in before:
        return []
    path = [end]
    while path[-1] != begin:
        path.append(before[path[-1]])
    return path[::-1]


def _orders(profile: Profile, work: Work) -> tuple[list[LockOrder], int]:
    """(up to _MOST_ORDERS, of how many locks there are more)"""
    waits = picked(work.lock_waits, np.lexsort((work.lock_waits["thread"], work.lock_waits["number"])))
    thread_of = np.array([-1, *(waker.thread for waker in profile.wakers)], np.int64)
    by_thread = picked(waits, np.lexsort((waits["start_ns"], waits["thread"])))
    begins_ns, numbers = by_thread["start_ns"].copy(), by_thread["number"].copy()
    ends_ns = begins_ns + by_thread["duration_ns"]
    borders = np.searchsorted(by_thread["thread"], np.arange(len(profile.threads) + 1)).tolist()
    found: dict[tuple[int, int, int], LockOrder] = {}
    by_lock = np.split(waits, np.flatnonzero(np.diff(waits["number"])) + 1)
    for place_of_lock, rows in enumerate(by_lock):
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
            own = slice(*borders[one : one + 2])
            held = had_it & (thread == one)
            # A thread's waits do not overlap.
            first = np.searchsorted(ends_ns[own], start_ns[held], side="right")
            behind = np.searchsorted(begins_ns[own], (start_ns + ns)[held], side="left")
            places = own.start + _places(first, behind)
            for place in places[np.sort(np.unique(numbers[places], return_index=True)[1])].tolist():
                if numbers[place] == has:
                    continue
                if len(found) >= _MOST_ORDERS:
                    return [*found.values()], len(by_lock) - place_of_lock
                key = one, has, int(numbers[place])
                found.setdefault(key, LockOrder(*key, int(work.own[by_thread["stack"][place]])))
    return [*found.values()], 0


def _places(first: Ints, behind: Ints) -> Ints:
    """All in these ranges, each once, ascending."""
    order = np.argsort(first, kind="stable")
    begin, end = first[order], behind[order]
    begin = np.maximum(begin, np.append(0, np.maximum.accumulate(end))[: len(end)])
    counts = (end - begin).clip(0)
    return np.asarray(np.arange(int(counts.sum())) + np.repeat(begin - (np.cumsum(counts) - counts), counts))
