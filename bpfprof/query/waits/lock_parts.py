"""Waits for one lock -> their parts behind one holder each.

Who releases a lock that others wait for wakes one of them. So from one release to the next it was held by who did the
next one, however many wait for it and in whatever order they get it. Where nobody waits a release is not seen: this
holds within a time in which there is always one that waits.

After the last release of such a time it is held by the one that this woke, which is known by that it does not wait
again. Of several, as with locks of files, for which all wait again but one, it is the one that does not. Or what was
read in the process says who has it. The same is so before one that releases it has got it without being woken: nobody
has a lock that he waits for himself.
"""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.holding import held_parts, holders_of, most_whole
from bpfprof.dataclass import dataclass
from bpfprof.model.profile import Profile
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools

_EVER_NS = np.int64(-(1 << 62))
_TOGETHER_NS = 1_000_000  # one release may wake several
_AGAIN_NS = 5_000_000  # from the end of a wait whose time ran out to the next one of the same thread
_NOBODY = 0, 0, -2


def parts_of(profile: Profile, rows: npt.NDArray[np.void]) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """(holder, its stack, row, start, nanoseconds) of parts of these waits for one lock, sorted by thread, then time.

    The first two are places + 1, in Profile.wakers and Profile.stacks, 0: not known.
    """
    holds = _holds(profile, rows)
    pairs, key = np.unique(holds.waker << 32 | holds.stack, return_inverse=True)
    holders = holders_of(np.append(_EVER_NS, holds.until_ns[:-1]), holds.thread, key)
    end_ns = _end_ns(rows)
    most = most_whole(holders, rows["start_ns"], end_ns, len(rows))
    thread = rows["thread"].astype(np.int64)
    row, part, start_ns, part_ns = held_parts(holders, thread, rows["start_ns"], end_ns, most)
    shown = np.flatnonzero(part_ns > 0)
    shown = shown[np.argsort(thread[row[shown]], kind="stable")]
    row, part, start_ns, part_ns = (column[shown] for column in (row, part, start_ns, part_ns))
    place = np.searchsorted(holds.until_ns, start_ns + part_ns, side="left")
    of_parts = np.where(holds.thread[place] != thread[row], pairs[part], 0)
    return of_parts >> 32, of_parts & 0xFFFFFFFF, row, start_ns, part_ns


@dataclass(frozen=True)
class _Holds:
    """Who had a lock, one after the other, until when. waker, stack: places + 1, 0: not known; thread: -1, -2: none."""

    until_ns: Ints
    waker: Ints
    stack: Ints
    thread: Ints


def _holds(profile: Profile, rows: npt.NDArray[np.void]) -> _Holds:
    thread_of = np.array([-2, *(waker.thread for waker in profile.wakers)], np.int64)  # -1: of no target
    is_thread = np.array([False, *(waker.kind == "thread" for waker in profile.wakers)])
    is_released, end_ns = is_thread[rows["waker"]], _end_ns(rows)
    number = _together(rows, is_released)
    release = np.flatnonzero(is_released)
    columns = [end_ns[release], *(rows[name][release].astype(np.int64) for name in ("waker", "waker_stack"))]
    columns.append(thread_of[columns[1]])
    # Times that do not end with a release.
    count = int(number.max(initial=-1)) + 1
    last_ns, released_ns = np.full(count, _EVER_NS), np.full(count, _EVER_NS)
    np.maximum.at(last_ns, number, end_ns)
    np.maximum.at(released_ns, number[release], end_ns[release])
    order = np.argsort(number, kind="stable")
    begin = np.searchsorted(number[order], np.arange(count + 1))
    rest = []
    for place in np.flatnonzero(last_ns > released_ns).tolist():
        own = order[begin[place] : begin[place + 1]]
        who = _told_holder(profile, rows[own], int(released_ns[place]))
        who = who or _woken_holder(profile, rows[own], is_released[own]) or _NOBODY
        rest.append((int(last_ns[place]), *who))
    for place, until_ns in _waits_of_givers(rows, release, columns[3], number):
        own = order[begin[place] : begin[place + 1]]
        own = own[rows["start_ns"][own] < until_ns]
        who = _woken_holder(profile, rows[own], is_released[own] & (end_ns[own] < until_ns)) or _NOBODY
        rest.append((until_ns, *who))
    columns = [np.append(one, other) for one, other in zip(columns, np.array(rest, np.int64).reshape(-1, 4).T)]
    in_time = np.argsort(columns[0], kind="stable")
    return _Holds(*(column[in_time] for column in columns))


def _waits_of_givers(rows: npt.NDArray[np.void], release: Ints, givers: Ints, number: Ints) -> list[tuple[int, int]]:
    """Ends of waits of those that release it next, after the release before: (number of _together(), when)."""
    end_ns = _end_ns(rows)
    in_time = np.argsort(end_ns[release], kind="stable")
    release, givers = release[in_time], givers[in_time]
    before_ns = np.append(_EVER_NS, end_ns[release][:-1])
    # The waits of all threads on one clock, those of one thread after those of another.
    from_ns = int(end_ns.min(initial=0)) - 1
    apart = int(end_ns.max(initial=0)) - from_ns + 1
    by_thread = np.sort(rows["thread"].astype(np.int64) * apart + end_ns - from_ns)
    own = np.flatnonzero(givers >= 0)
    base = givers[own] * apart - from_ns
    place = np.searchsorted(by_thread, base + end_ns[release[own]], side="right") - 1
    last_ns = np.append(by_thread, -1)[place] - base  # of another thread it is before all
    is_late = (last_ns > before_ns[own].clip(from_ns)) & (last_ns < end_ns[release[own]])
    order = np.flatnonzero(is_late)[np.argsort(givers[own][is_late], kind="stable")]
    return list(zip(number[release[own[order]]].tolist(), last_ns[order].tolist()))


def _woken_holder(profile: Profile, rows: npt.NDArray[np.void], is_released: Bools) -> tuple[int, int, int] | None:
    """(place + 1 in Profile.wakers, that of a stack, thread) of the one that the last release woke."""
    released = rows[is_released]
    if not len(released):
        return None
    end_ns = _end_ns(released)
    last = released[np.argmax(end_ns)]
    last_start_ns = {int(thread): int(start) for thread, start in zip(rows["thread"], rows["start_ns"])}
    woken = released[(end_ns > end_ns.max() - _TOGETHER_NS) & (released["waker"] == last["waker"])]
    has_it = [row for row in woken if last_start_ns[int(row["thread"])] == row["start_ns"]]
    return _holder(profile, int(has_it[0]["thread"]), int(has_it[0]["stack"]) + 1) if len(has_it) == 1 else None


def _told_holder(profile: Profile, rows: npt.NDArray[np.void], since_ns: int) -> tuple[int, int, int] | None:
    """The same of the one that was read in the process."""
    looks = profile.lock_holders
    times_ns = looks["time_ns"].astype(np.int64)
    begin, end = np.searchsorted(looks["thread"], [rows["thread"], rows["thread"] + 1])
    seen = []
    for first, last, start_ns, end_ns in zip(begin, end, rows["start_ns"].clip(since_ns), _end_ns(rows)):
        place = first + int(np.searchsorted(times_ns[first:last], start_ns))
        if place < last and times_ns[place] <= end_ns:
            seen.append((int(times_ns[place]), int(looks["holder"][place]) - 1))
    if not seen:
        return None
    at_ns, thread = min(seen)
    return _holder(profile, thread, _stack_at(profile, thread, at_ns))


def _holder(profile: Profile, thread: int, stack: int) -> tuple[int, int, int] | None:
    waker = next((place for place, it in enumerate(profile.wakers, 1) if it.thread == thread), 0)
    return (waker, stack, thread) if waker else None


def _stack_at(profile: Profile, thread: int, at_ns: int) -> int:
    """Place + 1 of the stack that a thread had, 0: not known."""
    if profile.spans is None:
        return 0
    spans = profile.spans[slice(*np.searchsorted(profile.spans["thread"], (thread, thread + 1)))]
    place = int(np.searchsorted(spans["start_ns"], at_ns, side="right")) - 1
    return int(spans["stack"][place]) + 1 if place >= 0 else 0


def _together(rows: npt.NDArray[np.void], is_released: Bools) -> Ints:
    """A number for each wait, in the order of time, the same for those of a time in which there is always one.

    A moment without one does not count where all whose time ran out wait again at once: none of them got the lock.
    """
    begin_ns, end_ns = rows["start_ns"], _end_ns(rows)
    order = np.argsort(begin_ns, kind="stable")
    last_ns = np.maximum.accumulate(end_ns[order])
    begins = np.append(True, begin_ns[order][1:] > last_ns[:-1])[: len(rows)]
    number = np.zeros(len(rows), np.int64)
    number[order] = np.cumsum(begins) - 1
    places = np.flatnonzero(begins)
    from_ns, to_ns = begin_ns[order][places], last_ns[np.append(places[1:] - 1, len(rows) - 1)]
    by_thread = np.lexsort((begin_ns, rows["thread"]))
    goes_on = np.zeros(len(rows), np.bool_)
    is_same = np.diff(rows["thread"][by_thread].astype(np.int64)) == 0
    goes_on[by_thread[:-1]] = is_same & (begin_ns[by_thread[1:]] - end_ns[by_thread[:-1]] <= _AGAIN_NS)
    ran_out = ~is_released & (end_ns > to_ns[number] - _AGAIN_NS)
    again, never = (np.bincount(number[ran_out & each], minlength=len(places)) > 0 for each in (goes_on, ~goes_on))
    is_new = np.append(True, (from_ns[1:] - to_ns[:-1] > _AGAIN_NS) | ~again[:-1] | never[:-1])[: len(places)]
    return np.asarray((np.cumsum(is_new) - 1)[number])


def _end_ns(rows: npt.NDArray[np.void]) -> Ints:
    found: Ints = rows["start_ns"] + rows["duration_ns"]
    return found
