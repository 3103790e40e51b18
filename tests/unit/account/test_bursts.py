"""Bursts: the thread's own CPU clock laid over the wall clock."""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof.account.cpu_clock import Bursts
from bpfprof.account.cpu_shares import share_cpu_time
from bpfprof.account.intervals import collect_intervals
from tests.unit.recording.hand_made import BLOCKED, MS, START_NS, HandMade, Story


def bursts_of(story: Story) -> Bursts:
    """The bursts of the only thread, which is looked at now."""
    story.total()
    story.made.end = {"end_ns": story.now_ns}
    intervals = collect_intervals(story.made.recording())
    return Bursts.of_thread(0, intervals)


@pytest.fixture
def story() -> Story:
    made = HandMade()
    made.process()
    return Story.begin(made)


def wall_ms(bursts: Bursts) -> list[tuple[float, float]]:
    """(start, length) of the bursts that have a length."""
    pairs = zip((bursts.start_ns - START_NS).tolist(), bursts.wall_ns.tolist(), strict=True)
    return [(start / MS, length / MS) for start, length in pairs if length]


def at_ms(bursts: Bursts, *moments: float) -> list[float]:
    """CPU time of the thread at moments of the wall clock, both in milliseconds."""
    wall = np.array([START_NS + int(moment * MS) for moment in moments], np.int64)
    return [round(position / MS, 3) for position in bursts.positions(wall).tolist()]


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
    exact = bursts.positions(np.array([START_NS + 4 * MS, START_NS + 50 * MS], np.int64))
    assert exact.tolist() == [3 * MS - 1, 5 * MS - 1], "the last nanosecond, not the next burst's first"


def test_stolen_time_is_spread_over_its_burst(story: Story) -> None:
    bursts = bursts_of(story.run(4 * MS, stolen=4 * MS).block(2 * MS).run(3 * MS, stolen=MS))
    assert wall_ms(bursts) == [(0, 8), (10, 4)]
    assert at_ms(bursts, 2, 6, 10, 12) == [1, 3, 4, 5.5]
    begin, stolen, short = bursts.wall_clock(np.array([0, MS, 4 * MS]), np.array([MS, 3 * MS, 3 * MS]))
    assert ((begin - START_NS) / MS).tolist() == [0, 2, 10] and (stolen / MS).tolist() == [1, 3, 1]
    assert not short.any()


def test_stolen_time_before_the_sleep_that_had_not_ended(story: Story) -> None:
    bursts = bursts_of(story.run(4 * MS, stolen=2 * MS).block(3 * MS).run(MS, stolen=5 * MS).block(7 * MS))
    assert wall_ms(bursts) == [(0, 6), (9, 6)]


def test_stolen_time_before_death(story: Story) -> None:
    story.run(4 * MS, stolen=2 * MS).block(3 * MS).run(MS, stolen=5 * MS).die()
    story.made.end = {"end_ns": story.now_ns + 9 * MS}
    intervals = collect_intervals(story.made.recording())
    assert wall_ms(Bursts.of_thread(0, intervals)) == [(0, 6), (9, 6)]


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
    positions = bursts.positions(moments)
    assert (np.diff(positions) >= 0).all(), "time does not run back"
    burst = np.clip(np.searchsorted(bursts.start_ns, moments, side="right") - 1, 0, None)
    assert (bursts.edges[burst] <= positions).all() and (positions < bursts.edges[burst + 1]).all()


@pytest.mark.parametrize("seed", range(15))
def test_pieces_and_stolen_time_fill_the_bursts(story: Story, seed: int) -> None:
    random_story(story, seed)
    bursts = bursts_of(story)
    moments = np.sort(np.random.default_rng(seed).integers(START_NS, story.now_ns, 50))
    shares = share_cpu_time(bursts.positions(moments), bursts.edges, 10 * MS)
    begin, stolen, short = bursts.wall_clock(shares.piece_start, shares.piece_length)
    end = begin + shares.piece_length + stolen
    assert (stolen >= 0).all() and not short.any()
    breaks = np.flatnonzero(end[:-1] != begin[1:])
    filled = bursts.wall_ns > 0
    assert begin[np.append(0, breaks + 1)].tolist() == bursts.start_ns[filled].tolist()
    assert end[np.append(breaks, -1)].tolist() == (bursts.start_ns + bursts.wall_ns)[filled].tolist()
    assert int(stolen.sum()) == int((bursts.wall_ns - np.diff(bursts.edges)).sum())
