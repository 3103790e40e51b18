"""Bursts: the thread's own CPU clock laid over the wall clock."""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof.account.cpu_clock import Bursts, scaled
from bpfprof.account.cpu_shares import share_cpu_time
from bpfprof.account.groups import groups_of
from bpfprof.account.threads import collect_threads
from tests.unit.recording.hand_made import BLOCKED, DEAD, MS, START_NS, HandMade, Story


def bursts_of(story: Story, end_ns: int | None = None, added_ns: int = 0, preempted_ns: int = 0) -> Bursts:
    """The bursts of the only thread, which is looked at now unless it has died."""
    if story.state != DEAD:
        story.total()
    story.made.end = {"end_ns": end_ns or story.now_ns}
    threads = collect_threads(story.made.recording())
    end, blocked, runnable = (
        threads.waits.column(name).astype(np.int64) for name in ("time_ns", "blocked_ns", "runqueue_ns")
    )
    ((group,),) = groups_of(threads)
    begin = end - runnable - blocked
    return Bursts.of_group(group, threads.waits, begin, end, np.array([preempted_ns]), np.array([added_ns]))


def wall_ns(bursts: Bursts) -> np.ndarray:
    return np.diff(bursts.edges) + bursts.taken_ns + bursts.added_ns + bursts.unknown_ns


@pytest.fixture
def story() -> Story:
    made = HandMade()
    made.process()
    return Story.begin(made)


def wall_ms(bursts: Bursts) -> list[tuple[float, float]]:
    """(start, length) of the bursts that have a length."""
    pairs = zip((bursts.start_ns - START_NS).tolist(), wall_ns(bursts).tolist())
    return [(start / MS, length / MS) for start, length in pairs if length]


def at_ms(bursts: Bursts, *moments: float) -> list[float]:
    """CPU time of the thread at moments of the wall clock, both in milliseconds."""
    wall = np.array([START_NS + int(moment * MS) for moment in moments], np.int64)
    return [round(position / MS, 3) for position in bursts.positions(wall, np.zeros(len(wall), np.int64)).tolist()]


def test_bursts_lie_between_the_waits(story: Story) -> None:
    bursts = bursts_of(story.run(3 * MS).block(5 * MS, ready=MS).run(2 * MS).preempt(MS).run(4 * MS))
    assert wall_ms(bursts) == [(0, 3), (9, 2), (12, 4)]
    assert (bursts.edges / MS).tolist() == [0, 3, 5, 9]


def test_a_thread_that_began_asleep_and_ended_asleep(story: Story) -> None:
    story.state = BLOCKED
    story.now_ns += 4 * MS
    bursts = bursts_of(story.run(2 * MS).block(3 * MS))
    assert wall_ms(bursts) == [(4, 2)] and int(bursts.edges[-1]) == 2 * MS


def test_moments_find_their_burst(story: Story) -> None:
    bursts = bursts_of(story.run(3 * MS).block(5 * MS).run(2 * MS))
    assert at_ms(bursts, 0, 1.5, 8, 9.5) == [0, 1.5, 3, 4.5]


def test_a_moment_outside_stays_in_the_nearest_burst_before(story: Story) -> None:
    """The sample's clock and the switch's are read a moment apart."""
    bursts = bursts_of(story.run(3 * MS).block(5 * MS).run(2 * MS))
    assert at_ms(bursts, 3.5, 7.99, 10, 99) == [3, 3, 5, 5]
    exact = bursts.positions(np.array([START_NS + 4 * MS, START_NS + 50 * MS], np.int64), np.zeros(2, np.int64))
    assert exact.tolist() == [3 * MS - 1, 5 * MS - 1], "the last nanosecond, not the next burst's first"


def test_stolen_time_is_spread_over_its_burst(story: Story) -> None:
    bursts = bursts_of(story.run(4 * MS, stolen=4 * MS).block(2 * MS).run(3 * MS, stolen=MS))
    assert wall_ms(bursts) == [(0, 8), (10, 4)]
    assert at_ms(bursts, 2, 6, 10, 12) == [1, 3, 4, 5.5]
    begin, stolen, added, unknown = bursts.wall_clock(
        np.array([0, MS, 4 * MS]), np.array([MS, 3 * MS, 3 * MS]), np.array([0, 0, 1])
    )
    assert ((begin - START_NS) / MS).tolist() == [0, 2, 10] and (stolen / MS).tolist() == [1, 3, 1]
    assert not added.any() and not unknown.any()


def test_of_the_rest_of_a_burst_what_was_added_up_is_known(story: Story) -> None:
    """1 ms and 3 ms in waits that have no row; that their sums say 2 ms leaves half of it unknown."""
    story.run(2 * MS).block_short(MS).run(MS).block(5 * MS).run(MS).block_short(3 * MS).run(MS)
    bursts = bursts_of(story, added_ns=2 * MS)
    assert wall_ms(bursts) == [(0, 4), (9, 5)]
    assert bursts.added_ns.tolist() == bursts.unknown_ns.tolist() == [MS // 2, 3 * MS // 2]
    assert not bursts_of(story, added_ns=9 * MS).unknown_ns.any()


def test_stolen_time_before_the_sleep_that_had_not_ended(story: Story) -> None:
    bursts = bursts_of(story.run(4 * MS, stolen=2 * MS).block(3 * MS).run(MS, stolen=5 * MS).block(7 * MS))
    assert wall_ms(bursts) == [(0, 6), (9, 6)]


def test_stolen_time_before_death(story: Story) -> None:
    story.run(4 * MS, stolen=2 * MS).block(3 * MS).run(MS, stolen=5 * MS).die()
    assert wall_ms(bursts_of(story, story.now_ns + 9 * MS)) == [(0, 6), (9, 6)]


def test_stolen_time_that_does_not_fit_its_burst_does_not_reach_into_the_wait(story: Story) -> None:
    story.run(4 * MS).block(3 * MS).run(2 * MS).block(MS).run(MS)
    story.made.waits[0]["stolen_ns"] = 2 * MS
    assert wall_ms(bursts_of(story)) == [(0, 4), (7, 2), (10, 1)]


def random_story(story: Story, seed: int) -> None:
    chance = np.random.default_rng(seed)
    for _ in range(40):
        story.run(int(chance.integers(1, 20 * MS)), stolen=int(chance.integers(0, 9 * MS) * chance.integers(0, 2)))
        if chance.random() < 0.3:
            story.preempt(int(chance.integers(1, MS)))
        else:
            story.block(int(chance.integers(1, 30 * MS)), ready=int(chance.integers(0, MS)))
    story.run(int(chance.integers(1, 20 * MS)), stolen=int(chance.integers(0, MS)))


@pytest.mark.parametrize("seed", range(15))
def test_positions_never_leave_their_burst(story: Story, seed: int) -> None:
    random_story(story, seed)
    bursts = bursts_of(story)
    moments = np.sort(np.random.default_rng(seed).integers(START_NS - MS, story.now_ns + MS, 3000))
    positions = bursts.positions(moments, np.zeros(len(moments), np.int64))
    assert (np.diff(positions) >= 0).all(), "time does not run back"
    burst = np.clip(np.searchsorted(bursts.start_ns, moments, side="right") - 1, 0, None)
    assert (bursts.edges[burst] <= positions).all() and (positions < bursts.edges[burst + 1]).all()


@pytest.mark.parametrize("seed", range(15))
def test_pieces_and_stolen_time_fill_the_bursts(story: Story, seed: int) -> None:
    random_story(story, seed)
    bursts = bursts_of(story)
    moments = np.sort(np.random.default_rng(seed).integers(START_NS, story.now_ns, 50))
    pieces = share_cpu_time(bursts.positions(moments, np.zeros(len(moments), np.int64)), bursts.edges, 10 * MS)
    burst = np.searchsorted(bursts.edges, pieces.start, side="right") - 1
    begin, stolen, added, unknown = bursts.wall_clock(pieces.start, pieces.length, burst)
    end = begin + pieces.length + stolen
    assert (stolen >= 0).all() and not added.any() and not unknown.any()
    breaks = np.flatnonzero(end[:-1] != begin[1:])
    filled = wall_ns(bursts) > 0
    assert begin[np.append(0, breaks + 1)].tolist() == bursts.start_ns[filled].tolist()
    assert end[np.append(breaks, -1)].tolist() == (bursts.start_ns + wall_ns(bursts))[filled].tolist()
    assert int(stolen.sum()) == int((wall_ns(bursts) - np.diff(bursts.edges)).sum())


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_each_thread_sum_to_its_total_to_the_nanosecond(seed: int) -> None:
    chance = np.random.default_rng(seed)
    counts = chance.integers(1, 100, 7)
    first, thread = np.append(0, np.cumsum(counts)), np.repeat(np.arange(7), counts)
    parts = chance.integers(0, 10 ** int(chance.integers(1, 12)), int(counts.sum()))
    sums = np.add.reduceat(parts, first[:-1])
    totals = (sums * chance.random(7) * 1.3).astype(np.int64)
    found = scaled(parts, first, thread, totals)
    assert np.add.reduceat(found, first[:-1]).tolist() == np.minimum(sums, totals).tolist()
    assert (found >= 0).all() and (found <= parts).all()
    wanted = parts * np.minimum(1, totals / np.maximum(sums, 1))[thread]
    assert np.abs(found - wanted).max() <= 2
