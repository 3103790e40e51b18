"""A profile and its work -> threads of Python that wait for threads without it, and what those wait for.

A front in Python hands its work to threads of a library and waits for them. That it waits says nothing: why, is what
the last of those that wait for each other does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import FrameKind
from bpfprof.model.grouping import sums_by, totals_of
from bpfprof.model.profile import Profile
from bpfprof.model.states import reason_number, reason_text
from bpfprof.query.answer.causes import CAUSES, causes_of
from bpfprof.query.answer.percent import percent
from bpfprof.query.code.functions import Ints, function_of_frames
from bpfprof.query.code.stack_frames import Bools
from bpfprof.query.steps.critical_path import handed_waits
from bpfprof.query.waits.lock_holders import lock_waits, waits_while_held
from bpfprof.query.work.places import most_of, place_text, top_place
from bpfprof.query.work.shares import HANDED, IDLE, LOCK, NATIVE, OF_REASON, PYTHON, SHARE_OF_WORD
from bpfprof.query.work.table import Work

_MOST = 0.5  # of its time: so much a front waits for others, or one of those for another one
_LARGEST = 0.35  # so much is enough for a main thread that spends less on anything else
_BESIDE = 0.2  # so much of a main thread that spends more on something else is said beside that
_SAID = 0.1  # of the time of the last: a second thing that it waits for is said from here on
_ONE_LOCK = 0.6  # of their waits for locks
_MOST_HANDS = 3
_SLEEP = reason_number("sleep")
_OVERLOAD = re.compile(r"\(anonymous namespace\)::|(?<!operator)\((?!\)\().*\)(?: const)?$")
WAITS = {word: share.awaited for word, share in SHARE_OF_WORD.items() if share.awaited}


@dataclass(frozen=True)
class Awaited:
    """Threads that wait for others, and what the last of those wait for; parts are of their own time, from 0 to 1.

    fronts, hands, last: places in Profile.threads; hands: those between one front and its last one, of which each
    waits for the next; none of several fronts. frame, last_frame: where each waits, places in Profile.frames; of `last`
    -1 where that is not known. causes: (one of CAUSES, its part), most first: one, or a second that is a wait from 10%
    on. object: what the first is for, "" if none is known; those that differ by a number are one, as `/dev/loop*`.
    lock: None where none of the causes is a lock, or several are wanted. is_largest: False where main threads spend
    more on something else.
    """

    fronts: tuple[int, ...]
    waits_part: float
    frame: int
    hands: tuple[int, ...]
    last: tuple[int, ...]
    last_frame: int
    causes: tuple[tuple[str, float], ...]
    object: str
    lock: AwaitedLock | None
    is_largest: bool


@dataclass(frozen=True)
class AwaitedLock:
    """The one lock that most of their waits for locks are for.

    threads: those that want it, places in Profile.threads as `holders`, those that had it, most first. processes: how
    many want it. frame: the place in Profile.frames where it was had most, -1: not known. reason: what they mostly
    waited for meanwhile, 0: nothing.
    """

    threads: tuple[int, ...]
    processes: int
    holders: tuple[int, ...]
    frame: int
    reason: int


def awaited_threads(profile: Profile, work: Work) -> Awaited | None:
    """None where no front waits for most of its time, or where those that it waits for run Python themselves."""
    rows, count = work.rows, len(profile.threads)
    walls = np.array([thread.wall_ns for thread in profile.threads] or [0], np.int64).clip(1)
    in_python = work.stack_frames.innermost_python() >= 0
    is_handed = (rows["share"] == HANDED) & np.append(in_python, False)[rows["stack"]]
    handed_ns = np.bincount(rows["thread"][is_handed], rows["ns"][is_handed], count)
    causes = causes_of(work)
    are_main = _are_main(profile)
    is_largest = (handed_ns > _MOST * walls) | (
        are_main & (handed_ns >= _LARGEST * walls) & (handed_ns > _largest_ns(rows, causes, count))
    )
    is_beside = are_main & (handed_ns >= _BESIDE * walls)
    if not is_largest.any() and not is_beside.any():
        return None
    behind = handed_waits(profile, work)
    ways, is_found_largest = list[tuple[int, list[int]]](), True
    for is_front in (is_largest, is_beside):
        waiting = {*np.flatnonzero(is_front).tolist()}
        ways = _ways(behind, waiting, _wait_most(rows, walls) | waiting)
        last = tuple(dict.fromkeys(way[-1] for _, way in ways))
        if ways and not in_python[rows["stack"][np.isin(rows["thread"], last)]].any():
            break
        is_found_largest = False
    else:
        return None
    fronts = tuple(dict.fromkeys(front for front, _ in ways))
    functions = np.append(function_of_frames(profile.frames), -1)
    of_last = np.isin(rows["thread"], last)
    # Who only sleeps is idle, but not where it is waited for.
    causes[of_last & (rows["share"] == IDLE) & (rows["reason"] == _SLEEP)] = CAUSES.index("sleep")
    part_of = np.bincount(causes[of_last], rows["ns"][of_last], len(CAUSES) + 2)[: len(CAUSES)] / walls[[*last]].sum()
    first, *others = np.argsort(-part_of, kind="stable").tolist()
    second = next(each for each in others if CAUSES[each] in WAITS)
    found = [
        (CAUSES[each], float(part_of[each])) for each in (first, second) if each == first or part_of[each] >= _SAID
    ]
    is_first = of_last & (causes == first)
    return Awaited(
        fronts,
        float(handed_ns[[*fronts]].sum() / walls[[*fronts]].sum()),
        top_place(work, is_handed & np.isin(rows["thread"], fronts), functions)[0],
        tuple(ways[0][1][:-1]) if len(ways) == 1 else (),
        last,
        top_place(work, is_first, functions)[0],
        tuple(found),
        _object(profile, rows[is_first]),
        _lock(profile, work, last) if any(name == "lock" for name, _ in found) else None,
        is_found_largest,
    )


def is_the_story(profile: Profile, found: Awaited) -> bool:
    """Main threads wait for others, and those at the end of that do not work either."""
    fronts = [profile.threads[each] for each in found.fronts]
    return found.causes[0][0] in (*WAITS, "sleep") and all(int(each.tid) == int(each.pid) for each in fronts)


def awaited_text(profile: Profile, found: Awaited) -> str:
    """Two sentences, and a third of what else the last wait for."""
    is_one = len(found.fronts) == 1
    text = f"{_fronts(profile, found.fronts)} {'waits' if is_one else 'wait'} {percent(found.waits_part)} of "
    first, *others = [*([each] for each in found.hands), found.last]
    text += f"the time for {_threads(profile, first)}{_at(profile, found.frame)}."
    text += "".join(f" That one waits for {_threads(profile, each)}." for each in others)
    who = "That one waits" if len(found.last) == 1 else "Those wait"
    for number, (cause, part) in enumerate(found.causes):
        if cause == "sleep":
            text += f" {who.rpartition(' ')[0]} sleep{'s' * (len(found.last) == 1)} {percent(part)} of the time."
            who = "It waits" if len(found.last) == 1 else "They wait"
            continue
        what = _lock_text(profile, found.lock) if cause == "lock" and found.lock else WAITS[cause]
        if not number:
            what += f", {found.object}" if found.object else ""
            what += _at(profile, found.last_frame) if cause != "lock" or not found.lock else ""
        text += f" {who} {percent(part)} for {what}."
        who = "It waits" if len(found.last) == 1 else "They wait"
    return text


def beside_text(profile: Profile, found: Awaited) -> str:
    """One sentence, of who works more than it waits: for whom, and what the last does."""
    verb = "waits" if len(found.fronts) == 1 else "wait"
    first, *others = [*([each] for each in found.hands), found.last]
    text = f"{_fronts(profile, found.fronts)} {verb} {percent(found.waits_part)} of the time for "
    text += ", that one for ".join(_threads(profile, each) for each in (first, *others))
    (cause, _), is_one = found.causes[0], len(found.last) == 1
    if cause == "sleep":
        return f"{text}, which sleep{'s' * is_one}."
    return f"{text}, which wait{'s' * is_one} for {WAITS[cause]}."


def _fronts(profile: Profile, fronts: tuple[int, ...]) -> str:
    threads = [profile.threads[place] for place in fronts]
    if all(int(thread.tid) == int(thread.pid) for thread in threads):
        return "The main thread" if len(threads) == 1 else f"The main threads of {len(threads)} processes"
    text = _threads(profile, fronts)
    return text[0].upper() + text[1:]


def _threads(profile: Profile, places: Sequence[int]) -> str:
    """`thread feeder (8612)`, `threads feeder`, `8 threads`."""
    threads = [profile.threads[place] for place in places]
    names = {thread.thread_name for thread in threads}
    if len(threads) == 1:
        return f"thread {threads[0].thread_name} ({threads[0].tid})"
    return f"threads {names.pop()}" if len(names) == 1 else f"{len(threads)} threads"


def _at(profile: Profile, frame: int) -> str:
    return f", in {_place(profile, frame)}" if frame >= 0 else ""


def _place(profile: Profile, frame: int) -> str:
    """As place_text(), of C++ without what tells overloads apart: the sentences have little room."""
    found = profile.frames[frame]
    is_python = found.kind == FrameKind.PYTHON
    return place_text(found if is_python else replace(found, name=_OVERLOAD.sub("", found.name)))


def _lock_text(profile: Profile, lock: AwaitedLock) -> str:
    text = f"one lock of {lock.processes} processes" if lock.processes > 1 else "one lock"
    if not lock.holders:
        return text
    does = [f"in {_place(profile, lock.frame)}"] if lock.frame >= 0 else []
    does += [] if set(lock.holders) <= set(lock.threads) else [f"by {_threads(profile, lock.holders)}"]
    word = OF_REASON.get(reason_text(lock.reason), "")
    text += f", held {' '.join(does)}" if does else ""
    return text + (f", which waits for {WAITS[word]}" if does and lock.reason and word in WAITS else "")


def _are_main(profile: Profile) -> Bools:
    return np.array([int(thread.tid) == int(thread.pid) for thread in profile.threads] or [False], np.bool_)


def _largest_ns(rows: npt.NDArray[np.void], causes: Ints, count: int) -> Ints:
    """For each thread the time of its largest cause; CPU time in Python and native code is one."""
    is_one = causes < len(CAUSES)
    merged = np.where(causes == PYTHON, NATIVE, causes)[is_one]
    spent = sums_by(rows["thread"][is_one] * len(CAUSES) + merged, rows["ns"][is_one], max(count, 1) * len(CAUSES))
    return np.asarray(spent.reshape(-1, len(CAUSES)).max(axis=1))


def _wait_most(rows: npt.NDArray[np.void], walls: Ints) -> set[int]:
    """Threads that wait for others most of their time."""
    is_handed = rows["share"] == HANDED
    handed_ns = np.bincount(rows["thread"][is_handed], rows["ns"][is_handed], len(walls))
    return {*np.flatnonzero(handed_ns > _MOST * walls).tolist()}


def _ways(behind: dict[int, dict[int, int]], waiting: set[int], waits_most: set[int]) -> list[tuple[int, list[int]]]:
    """Of those that wait the way of each; none of one that waits behind another, as loaders do whose queue is full."""
    ways = [(front, way) for front in sorted(waiting) if (way := _way(behind, front, waits_most))]
    return [(front, way) for front, way in ways if not {*way} & waiting]


def _way(behind: dict[int, dict[int, int]], front: int, wait_most: set[int]) -> list[int]:
    """From one that waits to the one that it waits for most, and on as long as that waits so most of its time."""
    place, seen, way = front, {front}, list[int]()
    for _ in range(_MOST_HANDS):
        others = {it: ns for it, ns in behind.get(place, {}).items() if it not in seen}
        if not others:
            break
        place = max(others, key=others.__getitem__)
        seen.add(place)
        way.append(place)
        if place not in wait_most:
            break
    return way


def _object(profile: Profile, rows: npt.NDArray[np.void]) -> str:
    spent: Counter[str] = Counter()
    for share in totals_of(rows["object"], rows["ns"]):
        spent[profile.objects[share.value - 1] if share.value else ""] += share.ns
    alike: Counter[str] = Counter()
    for name, ns in spent.items():
        alike[re.sub(r"\d+", "*", name)] += ns
    for names in (spent, alike):
        name, ns = max(names.items(), key=lambda item: item[1], default=("", 0))
        if name and ns > _MOST * sum(names.values()):
            return name
    return ""


def _lock(profile: Profile, work: Work, last: tuple[int, ...]) -> AwaitedLock | None:
    rows = work.rows[np.isin(work.rows["thread"], last) & (work.rows["share"] == LOCK)]
    number = most_of(rows["lock"], rows["ns"])
    if not number or rows["ns"][rows["lock"] == number].sum() < _ONE_LOCK * rows["ns"].sum():
        return None
    lock = next(each for each in lock_waits(profile, work, number) if each.number == number)
    held_ns, reasons = waits_while_held(profile, work, number)
    holders = [share for share in lock.holders if share.value >= 0 and profile.wakers[share.value].thread >= 0]
    reason = next((each.value for each in reasons[:1] if each.ns > _MOST * held_ns), 0)
    return AwaitedLock(
        lock.threads,
        len({profile.threads[thread].pid for thread in lock.threads}),
        tuple(dict.fromkeys(profile.wakers[share.value].thread for share in holders)),
        next((share.frame for share in holders), -1),
        reason,
    )
