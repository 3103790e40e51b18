"""Waits for a GIL: slices put together, and who had it meanwhile."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from bpfprof.account.holding import held_parts, holders_of, most_whole
from bpfprof.model.profile import Profile
from bpfprof.model.samples import UNSAMPLED, WAIT_DTYPE, WAITS_FOR_GIL, WakerKind
from bpfprof.model.spans import ThreadState
from bpfprof.profile.build import build_profile
from bpfprof.query.work.waits import find_waits
from tests.unit.profile.views import built
from tests.unit.recording.hand_made import FOR_CONDITION, FOR_MUTEX, FUTEX, MS, START_NS, HandMade, Story, row

GIL = 0x7000
OTHER_GIL = 0x9000
TIMER, THREAD = {"waker_kind": WakerKind.INTERRUPT}, {"waker_kind": WakerKind.THREAD}


@pytest.fixture
def made() -> HandMade:
    empty = HandMade()
    empty.process(100, gil=[GIL, 208], gil_switch=[GIL + 120, 88])
    return empty


def gil(
    story: Story,
    ns: int,
    holder: int = -1,
    stack: int = 0,
    address: int = GIL + 40,
    operation: int = FOR_CONDITION,
    **wait: Any,
) -> Story:
    """Waits for a GIL that thread `holder` has in `stack`."""
    flags = {"flags": WAITS_FOR_GIL, "holder": holder + 1, "holder_stack": stack}
    return story.block(ns, syscall=FUTEX, args=(address, operation, 0), **flags, **wait)


def ended(made: HandMade, *stories: Story) -> Profile:
    """When the last of these threads ends; the others run until then."""
    end_ns = max(story.now_ns for story in stories)
    for story in stories:
        if story.now_ns < end_ns:
            story.run(end_ns - story.now_ns)
        story.total()
    return built(made, (end_ns - START_NS) / MS)


def behind_ms(profile: Profile, waiter: int) -> dict[tuple[int, str], float]:
    """(holder, its function) -> milliseconds."""
    rows = profile.gil_waits[profile.gil_waits["thread"] == waiter]
    found = {}
    for each in rows:
        frames = profile.stacks[each["stack"] - 1] if each["stack"] else ()
        found[int(each["holder"]), profile.frames[frames[-1]].name if frames else ""] = int(each["ns"]) / MS
    assert len(found) == len(rows)
    return found


def waits_ms(profile: Profile) -> list[float]:
    return (find_waits(profile).rows["blocked_ns"] / MS).tolist()


def test_slices_that_a_timer_ended_are_one_wait(made: HandMade) -> None:
    stack = made.stack((made.code("f"), 0, 0))
    story = Story.begin(made).run(MS)
    for kind in (TIMER, {"waker_kind": 0}, THREAD):
        gil(story, 5 * MS, stack=stack, address=GIL + 40 + 48 * (kind is THREAD), **kind).run(50_000)
    gil(story, 3 * MS, stack=stack, **THREAD).run(MS)
    profile = ended(made, story)
    assert waits_ms(profile) == [15, 3]
    (weight,) = (it for it in profile.weights if it["state"] == ThreadState.OFF_CPU)
    assert (weight["count"], weight["max_ns"], weight["total_ns"]) == (2, 15 * MS, 18 * MS)


@pytest.mark.parametrize(
    ("first", "ran_us", "second_address"),
    [(THREAD, 10, GIL + 40), (TIMER, 100, GIL + 40), (TIMER, 10, OTHER_GIL), ({"waker_kind": 0}, 10, GIL + 40)],
)
def test_what_is_no_slice(made: HandMade, first: dict[str, Any], ran_us: int, second_address: int) -> None:
    story = Story.begin(made).run(MS)
    gil(story, 4 * MS, **first).run(ran_us * 1000)
    gil(story, 5 * MS, address=second_address, **TIMER).run(MS)
    assert waits_ms(ended(made, story)) == [4, 5]


def test_the_wait_that_had_not_ended_is_a_slice_too(made: HandMade) -> None:
    story = Story.begin(made).run(MS)
    gil(gil(story, 5 * MS, **TIMER).run(1000), 2 * MS)
    assert waits_ms(ended(made, story)) == [7]


def test_each_wait_is_behind_the_holder_it_saw(made: HandMade) -> None:
    hog, wait = made.stack((made.code("hog"), 0, 0)), made.stack((made.code("wait"), 0, 0))
    story = Story.begin(made).run(MS)
    other = Story.begin(made, tid=101).run(20 * MS)
    gil(gil(story, 5 * MS, 1, hog, **TIMER).run(1000), 3 * MS, 1, wait, **THREAD).run(MS)
    profile = ended(made, story, other)
    assert behind_ms(profile, 0) == {(1, "hog"): 5, (1, "wait"): 3}
    assert dict(profile.threads[0].off_by_reason)["gil"] == int(profile.gil_waits["ns"].sum())
    assert behind_ms(build_profile(made.recording()), 0) == behind_ms(profile, 0), "without the spans too"


def test_a_wait_is_split_where_another_thread_sees_or_gets_the_gil(made: HandMade) -> None:
    first, second, third = (made.stack((made.code(name), 0, 0)) for name in ("first", "second", "third"))
    long = Story.begin(made).run(MS)
    gil(long, 20 * MS, 2, first, **THREAD).run(MS)
    seer = Story.begin(made, tid=101).run(6 * MS)
    seer.block(
        3 * MS,
        syscall=FUTEX,
        stack=third,
        args=(GIL + 40, FOR_CONDITION, 0),
        flags=1 | WAITS_FOR_GIL,
        holder=3,
        **THREAD,
    )
    made_holder = Story.begin(made, tid=102)
    seer.wait["holder_stack"] = second
    profile = ended(made, long, seer.run(MS), made_holder.run(MS))
    # It began behind `first`; at 6 ms thread 2 was seen in `second`; at 9 ms thread 1 was given the GIL.
    assert behind_ms(profile, 0) == {(2, "first"): 5, (2, "second"): 3, (1, "third"): 12}
    assert behind_ms(profile, 1) == {(2, "second"): 3}


@pytest.mark.parametrize("together", [1, 3, 1000])
def test_threads_are_cut_together_as_one_by_one(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes, each with a GIL of its own, and one with a second one."""
    monkeypatch.setattr("bpfprof.account.gil._ROWS_TOGETHER", together)
    found = []
    for _ in range(2):
        made, chance = HandMade(), np.random.default_rng(5)
        for pid in (100, 200):
            made.process(pid, gil=[GIL, 208], gil_switch=[GIL + 120, 88])
        stack = made.stack((made.code("f"), 0, 0))
        stories = [Story.begin(made, 100 + number, process=number % 2).run(MS) for number in range(6)]
        for turn in range(30):
            story, ns = stories[turn % 6], int(chance.integers(1, 4 * MS))
            address = GIL + 40 + 4096 * (story.thread == 4 and turn % 4 == 0)
            gil(story, ns, holder=(story.thread + 2) % 6, stack=stack, address=address, **THREAD).run(100_000)
        found.append(ended(made, *stories).gil_waits)
        monkeypatch.undo()
    assert found[0].tolist() == found[1].tolist() and len(found[0]) > 6


def test_no_thread_waits_behind_itself(made: HandMade) -> None:
    hog, mine = made.stack((made.code("hog"), 0, 0)), made.stack((made.code("mine"), 0, 0))
    story = gil(Story.begin(made).run(MS), 10 * MS, 1, hog, **THREAD)
    seer = gil(Story.begin(made, tid=101).run(4 * MS), 2 * MS, 0, mine, **TIMER)
    profile = ended(made, story.run(MS), seer.run(MS))
    assert behind_ms(profile, 0) == {(1, "hog"): 10}
    assert behind_ms(profile, 1) == {(0, "mine"): 2}


def test_holders_that_nobody_saw_are_not_known(made: HandMade) -> None:
    story = gil(Story.begin(made).run(MS), 10 * MS, **TIMER)
    alone = gil(Story.begin(made, tid=101).run(3 * MS), 2 * MS, address=OTHER_GIL, holder=0, **TIMER)
    profile = ended(made, story.run(MS), alone.run(MS))
    assert behind_ms(profile, 0) == {(-1, ""): 10} and behind_ms(profile, 1) == {(0, ""): 2}, "GILs do not mix"


@pytest.mark.parametrize("where", [{"address": GIL + 140}, {"address": OTHER_GIL + 80, "operation": FOR_MUTEX}])
def test_a_wait_that_the_next_holder_ends_is_behind_that_one(made: HandMade, where: dict[str, int]) -> None:
    """drop_gil() waits on a condition of its own for who takes the GIL; and both need a mutex to do so."""
    next_one, hog = made.stack((made.code("next"), 0, 0)), made.stack((made.code("hog"), 0, 0))
    waiter = gil(Story.begin(made).run(MS), 10 * MS, 2, hog, address=where["address"], **THREAD)
    taker = Story.begin(made, tid=101)
    waker = made.waker(1, name="taker")
    gave = gil(Story.begin(made, tid=102).run(3 * MS), 2 * MS, waker=waker, waker_stack=next_one, **where, **THREAD)
    profile = ended(made, waiter.run(MS), taker.run(MS), gave.run(MS))
    assert behind_ms(profile, 0) == {(2, "hog"): 2, (1, "next"): 8}
    assert behind_ms(profile, 2) == {(1, "next"): 2}


def test_sums_have_no_holder(made: HandMade) -> None:
    hog = made.stack((made.code("hog"), 0, 0))
    story = gil(gil(Story.begin(made).run(MS), 9 * MS, 1, hog, **THREAD).run(MS), 3 * MS, 1, **THREAD).run(MS)
    story.block_short(4 * MS, syscall=FUTEX, flags=WAITS_FOR_GIL | UNSAMPLED).run(MS)
    story.block_short(MS, syscall=FUTEX, flags=WAITS_FOR_GIL).run(MS)
    other = Story.begin(made, tid=101)
    other.block_short(2 * MS, syscall=FUTEX, flags=WAITS_FOR_GIL | UNSAMPLED).run(MS)
    profile = ended(made, story, other)
    assert behind_ms(profile, 0) == {(1, "hog"): 9, (1, ""): 3, (-1, ""): 5}, "whom they waited behind nobody saw"
    assert behind_ms(profile, 1) == {(-1, ""): 2}


def test_a_wait_stands_for_others_behind_its_own_holder(made: HandMade) -> None:
    hog = made.stack((made.code("hog"), 0, 0))
    story = gil(gil(Story.begin(made).run(MS), 4 * MS, 1, hog, one_in=2, **THREAD).run(MS), 3 * MS, 1, **THREAD).run(MS)
    story.block_short(5 * MS, syscall=FUTEX, flags=WAITS_FOR_GIL | UNSAMPLED).run(MS)
    assert behind_ms(ended(made, story, Story.begin(made, tid=101)), 0) == {(1, "hog"): 9, (1, ""): 3}


@pytest.mark.parametrize("seed", range(20))
def test_parts_against_a_count_of_every_nanosecond(seed: int) -> None:
    chance = np.random.default_rng(seed)
    seen = int(chance.integers(0, 40))
    start, holder = chance.integers(0, 500, seen), chance.integers(0, 4, seen)
    stack = chance.integers(0, 3, seen)
    pairs, key = np.unique(holder << 32 | stack, return_inverse=True)
    borders = np.sort(chance.choice(600, 20, replace=False))
    begin, end = borders[::2].astype(np.int64), borders[1::2].astype(np.int64)
    found = np.zeros((len(begin), len(pairs) + 1), np.int64)
    part_row, part_key, part_start, part_ns = held_parts(
        holders_of(start, holder, key), np.ones(len(begin), np.int64), begin, end, 100
    )
    np.add.at(found, (part_row, part_key), part_ns)
    for number, (first, last) in enumerate(zip(begin, end)):
        own = np.flatnonzero((part_row == number) & (part_ns > 0))
        own = own[np.argsort(part_start[own])]
        borders = np.append(part_start[own], last)
        assert borders[0] == first and (np.diff(borders) == part_ns[own]).all()
    order = np.argsort(start, kind="stable")
    expected = np.zeros_like(found)
    for number, (first, last) in enumerate(zip(begin, end)):
        for moment in range(first, last):
            before = [it for it in order if start[it] <= moment and holder[it] != 1]
            expected[number, key[before[-1]] if before else -1] += 1
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_of_many_holders_some_are_told_and_the_rest_is_not_known(most: int) -> None:
    """The rest is one part; nothing is lost, and no holder has more than it had."""
    start, key = np.arange(0, 1000, 10), np.arange(100) % 5
    holders = holders_of(start, np.zeros(100, np.int64), key)
    begin, end = np.array([5, 203, 900], np.int64), np.array([195, 207, 1000], np.int64)
    whole, cut = (np.zeros((3, 6), np.int64) for _ in range(2))
    for found, limit in ((whole, 1000), (cut, most)):
        row, part_key, _, ns = held_parts(holders, np.ones(len(begin), np.int64), begin, end, limit)
        np.add.at(found, (row, part_key), ns)
        assert np.bincount(row).max() <= limit + 3
    assert cut.sum(axis=1).tolist() == whole.sum(axis=1).tolist() == (end - begin).tolist()
    assert (cut[:, :-1] <= whole[:, :-1]).all() and (cut[[0, 2], -1] > 0).all() and not whole[:, -1].any()
    assert cut[1].tolist() == whole[1].tolist(), "what has no more holders is as it was"


def test_how_much_is_told_has_a_bound_however_many_wait_for_however_many_holders() -> None:
    holders = holders_of(np.arange(30_000), np.zeros(30_000, np.int64), np.arange(30_000))
    rows, changes = 2_000, 30_000
    begin, end = np.zeros(rows, np.int64), np.full(rows, changes, np.int64)
    assert most_whole(holders, begin, end, rows) * rows < rows * changes / 100
    assert most_whole(holders, begin[:2], end[:2], 2) >= changes - 2, "of a few all"


@pytest.mark.second_tier
def test_waits_that_overlap_cost_no_more_than_others(made: HandMade) -> None:
    made.thread()
    for number in range(3000):
        values = {"time_ns": START_NS + 10**9 + number, "blocked_ns": 10**9, "syscall": FUTEX, "holder": 1}
        made.waits.append(row(WAIT_DTYPE, flags=WAITS_FOR_GIL, **values))
    began_s = time.process_time()
    build_profile(made.recording())
    assert time.process_time() - began_s < 5
