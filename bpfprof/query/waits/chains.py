"""Waits of a Profile -> who ended them, who ended the waits of those, and who held the GIL meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.grouping import Total, group_numbers, sums_by, totals_of
from bpfprof.model.ids import Pid
from bpfprof.model.profile import Profile, ThreadTime, Waker
from bpfprof.model.rows import blocks, one_after_another, picked
from bpfprof.model.spans import WAIT_TIME_DTYPE, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.query.code.folded_names import role_name
from bpfprof.query.code.functions import Ints, owner_functions, wait_owners
from bpfprof.query.work.waits import Waits, wait_times

_MANY_ALIKE = 4  # wakers of one process and role

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class WokenBy:
    """What ended most of the time of some waits. wakers: places in Profile.wakers, more than one where they are alike.

    `functions`: where they were, by time, places in Profile.frames, -1: not known; they sum to its part of all_ns,
    the time of the waits; unknown_ns: of those that nobody is known to have ended. `reason`: what the waits that it
    ended were mostly for, see model.states; `owner`: the function they were mostly in, as in `functions`.
    """

    wakers: tuple[int, ...]
    functions: tuple[Total, ...]
    all_ns: int
    unknown_ns: int
    reason: int
    owner: int

    @property
    def ns(self) -> int:
        """Of all_ns, what it ended."""
        return sum(share.ns for share in self.functions)


@dataclass(frozen=True)
class GilWait:
    """How long a thread waited for GILs, and the holders with most of it; `value` of a share is a thread, -1: none."""

    thread: int
    total_ns: int
    holders: tuple[Total, ...]


def waker_name(waker: Waker, threads: Sequence[ThreadTime]) -> str:
    """`thread NAME (TID)`, `timer`, `interrupt`; as the thread called itself, not made safe for a terminal."""
    if waker.kind != "thread":
        return waker.kind
    return f"thread {thread_name(waker, threads) or '?'} ({waker.tid})"


def thread_name(waker: Waker, threads: Sequence[ThreadTime]) -> str:
    """As it called itself. One of the profile's threads has the name it has there."""
    return threads[waker.thread].thread_name if 0 <= waker.thread < len(threads) else waker.thread_name


def alike_wakers(profile: Profile) -> Ints:
    """For each waker, from 1 on, the first of many threads of its process whose names differ by their numbers alone, or
    that have one name and lived for less than half of the time; itself where those are few."""
    found: dict[tuple[Pid, str], list[int]] = {}
    for number, waker in enumerate(profile.wakers, 1):
        name = thread_name(waker, profile.threads)
        thread = profile.threads[waker.thread] if 0 <= waker.thread < len(profile.threads) else None
        is_short = thread is None or 2 * thread.wall_ns < profile.info.duration_ns
        if waker.kind == "thread" and int(waker.tid) != int(waker.pid) and (is_short or role_name(name) != name):
            found.setdefault((waker.pid, role_name(name)), []).append(number)
    first = np.arange(len(profile.wakers) + 1)
    for numbers in found.values():
        if len(numbers) >= _MANY_ALIKE:
            first[numbers] = numbers[0]
    return first


def woken_by(
    waits: Waits, threads: Ints, functions: Ints, alike: Ints, places: Ints, depth: int
) -> tuple[WokenBy, ...]:
    """Who ended the waits of the rows at these places for most of their time; then who ended the wait of that thread
    before.

    threads: for each waker, -1: none of the profile's. functions: for each stack the frame of its function, -1: none.
    alike: as alike_wakers(). Ends after `depth`, or where nothing is known.
    """
    chain: list[WokenBy] = []
    weights = waits.rows["total_ns"][places]
    # Waits and their weights, of which `places` are the rows.
    found: tuple[npt.NDArray[np.integer[Any]], Floats] | None = None
    functions = np.append(functions, -1)
    while len(places):
        single = waits.rows["waker"][places]
        wakers = alike[single]
        known = wakers > 0
        if not known.any():
            break
        best = totals_of(wakers[known], weights[known])[0]
        chosen = wakers == best.value
        of_best, of_chosen = places[chosen], weights[chosen]
        chain.append(
            WokenBy(
                tuple((np.unique(single[chosen]).astype(np.int64) - 1).tolist()),
                totals_of(functions[waits.rows["waker_stack"][of_best].astype(np.int64) - 1], of_chosen),
                int(weights.sum()),
                int(weights[~known].sum()),
                totals_of(waits.rows["reason"][of_best], of_chosen)[0].value,
                totals_of(functions[waits.rows["stack"][of_best]], of_chosen)[0].value,
            )
        )
        # Of several the one with most time tells more.
        most = totals_of(single[chosen], of_chosen)[0].value
        of_best, of_chosen = places[single == most], weights[single == most]
        thread = int(threads[most - 1])
        if len(chain) >= depth or thread < 0:
            break
        if found is None:
            its_waits = waits.of_rows(of_best)
            found = its_waits, waits.stand_for_ns(its_waits)
        else:
            by_best = waits.rows["waker"][waits.rows_of(found[0])] == most
            found = found[0][by_best], found[1][by_best]
        before = waits.before(found[0], thread)
        found = before[before >= 0], found[1][before >= 0]
        summed = np.bincount(waits.rows_of(found[0]), found[1], len(waits.rows))
        places = np.flatnonzero(summed)
        weights = np.rint(summed[places]).astype(np.int64)
    return tuple(chain)


def holders_in(
    holder: Ints, stack: npt.NDArray[np.generic], ns: npt.NDArray[np.generic], functions: Ints, owners: Ints
) -> tuple[Total, ...]:
    """Who held a lock, and in which function; `value`: a holder, -1: not known. stack: place + 1, 0: not known.

    functions: for each stack the frame of its function, owners: with its line, -1: none. `frame` of a share has the
    line with most of its time.
    """
    places, spent = stack.astype(np.int64) - 1, ns.astype(np.int64)
    frames, lines = np.append(functions, -1)[places], np.append(owners, -1)[places]
    first, number = group_numbers([holder + 1, frames + 1, lines + 1])
    line_ns = sums_by(number, spent, len(first))
    holder, frames, lines = holder[first], frames[first], lines[first]
    is_new = np.append(True, (np.diff(holder) != 0) | (np.diff(frames) != 0))[: len(first)]
    pair = np.cumsum(is_new) - 1
    most, frame_ns = np.lexsort((-line_ns, pair))[is_new], sums_by(pair, line_ns, int(is_new.sum()))
    holder, frames, lines = holder[is_new], frames[is_new], lines[most]
    order = np.lexsort((frames, holder, -frame_ns))
    shares = zip(holder[order].tolist(), frame_ns[order].tolist(), lines[order].tolist())
    return tuple(Total(value, ns, line) for value, ns, line in shares)


def gil_waits(profile: Profile, group_of: Ints | None = None) -> list[GilWait]:
    """For each thread that waited for a GIL, most first. group_of: for each thread one that it counts as."""
    rows = profile.gil_waits
    if not len(rows):
        return []
    group_of = np.append(np.arange(len(profile.threads)) if group_of is None else group_of, -1)
    threads, holders = group_of[rows["thread"]], group_of[rows["holder"]]
    owners = np.array(wait_owners(profile.frames, profile.stacks), np.int64)
    functions = owner_functions(profile.frames, owners)
    waits = []
    for share in totals_of(threads, rows["ns"].astype(np.int64)):
        own = threads == share.value
        found = holders_in(holders[own], rows["stack"][own], rows["ns"][own], functions, owners)
        waits.append(GilWait(share.value, share.ns, found))
    return waits


def convoys(profile: Profile) -> dict[int, float]:
    """For each process with spans of waits for a GIL how many threads waited on average while one did.

    Waits whose times are not known say nothing of that.
    """
    if profile.spans is None:
        return {}
    is_gil = (profile.spans["state"] == ThreadState.OFF_CPU) & (profile.spans["reason"] == reason_number("gil"))
    waits = one_after_another(
        WAIT_TIME_DTYPE, [picked(part, is_gil[part["span"]]) for part in blocks(wait_times(profile))]
    )
    pids = np.array([int(thread.pid) for thread in profile.threads] or [0], np.int64)
    pids = pids[profile.spans["thread"][waits["span"]]]
    found = {}
    for pid in np.unique(pids).tolist():
        own = waits[pids == pid]
        begin = np.sort(own["start_ns"])
        # Waits overlap where one has begun before all that began earlier have ended.
        order = np.argsort(own["start_ns"], kind="stable")
        ends = np.maximum.accumulate((own["start_ns"] + own["duration_ns"])[order])
        apart_ns = (begin[1:] - ends[:-1]).clip(0).sum()
        together_ns = int(ends[-1] - begin[0] - apart_ns)
        found[pid] = float(own["duration_ns"].sum()) / max(together_ns, 1)
    return found
