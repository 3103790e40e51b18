"""CPU time shared out over samples: nothing lost, long bursts exact, short ones better than equal weights."""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof import array_types as npt
from bpfprof.account.cpu_shares import CpuPieces, share_cpu_time

MS = 1_000_000
PERIOD_NS = 10 * MS
Ints = npt.NDArray[np.int64]


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def random_case(seed: int) -> tuple[Ints, Ints, int, Ints | None]:
    """Positions, edges, period, groups: bursts of every length, some empty; samples anywhere, some on edges."""
    chance = np.random.default_rng(seed)
    scale = int(chance.choice([1, 100, MS, 30 * MS]))
    lengths = chance.integers(0, 2 * scale + 1, chance.integers(0, 60)) * chance.integers(0, 2, 1) ** chance.integers(
        0, 2
    )
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    positions = chance.integers(0, max(1, int(edges[-1])), chance.integers(0, 80))
    on_edges = chance.choice(edges, chance.integers(0, 5))
    positions = np.sort(np.concatenate([positions, on_edges])).astype(np.int64)
    groups = None if seed % 3 == 0 else chance.integers(0, 6, len(lengths)).astype(np.int64) * 1_000_003
    return positions, edges, 0 if seed % 5 == 0 else PERIOD_NS, groups


def weights_of(pieces: CpuPieces, count: int) -> tuple[Ints, int]:
    """(nanoseconds of each sample, those that no sample speaks for)"""
    sums = np.bincount(pieces.sample + 1, pieces.length, count + 1).astype(np.int64)
    return sums[1:], int(sums[0])


def assert_whole(pieces: CpuPieces, positions: Ints, edges: Ints) -> None:
    """Every nanosecond in one piece, every piece in one burst."""
    total = int(edges[-1])
    filled = pieces.length > 0
    start, end = pieces.start[filled], (pieces.start + pieces.length)[filled]
    assert (pieces.length >= 0).all()
    if total:
        assert start[0] == 0 and end[-1] == total and (start[1:] == end[:-1]).all(), "pieces tile the CPU time"
    burst = np.searchsorted(edges, start, side="right") - 1
    assert (end <= edges[burst + 1]).all(), "no piece crosses the edge of a burst"
    sample = pieces.sample
    assert ((sample >= -1) & (sample < len(positions))).all()


@pytest.mark.parametrize("block", range(10))
def test_no_nanosecond_is_lost_or_counted_twice(block: int) -> None:
    for seed in range(60 * block, 60 * block + 60):
        positions, edges, period_ns, groups = random_case(seed)
        try:
            assert_whole(share_cpu_time(positions, edges, period_ns, groups), positions, edges)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def test_a_long_burst_goes_to_its_own_samples() -> None:
    edges = ints(0, 40 * MS, 41 * MS, 71 * MS)
    positions = ints(5 * MS, 15 * MS, 25 * MS, 35 * MS, 50 * MS, 60 * MS)
    pieces = share_cpu_time(positions, edges, PERIOD_NS)
    weights, unsampled_ns = weights_of(pieces, len(positions))
    assert weights.tolist() == [10 * MS] * 4 + [15 * MS] * 2
    assert unsampled_ns == MS, "no sample speaks for the short burst"


@pytest.mark.parametrize("seed", range(20))
def test_long_bursts_are_exact_whatever_else_happens(seed: int) -> None:
    chance = np.random.default_rng(seed)
    lengths = np.where(chance.random(60) < 0.4, chance.integers(10, 80, 60), chance.random(60) * 5) * MS
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    positions = np.arange(chance.integers(PERIOD_NS), int(edges[-1]), PERIOD_NS)
    groups = chance.integers(0, 4, 60).astype(np.int64)
    pieces = share_cpu_time(positions, edges, PERIOD_NS, groups)
    burst = np.searchsorted(edges, positions, side="right") - 1
    for number in np.flatnonzero(np.diff(edges) >= PERIOD_NS).tolist():
        assert (burst == number).any(), "a period long, so the clock ticked in it"
        assert weights_of(pieces, len(positions))[0][burst == number].sum() == np.diff(edges)[number]


def test_short_bursts_share_their_time_equally() -> None:
    edges = np.arange(101, dtype=np.int64) * MS
    positions = ints(3 * MS, 50 * MS, 51 * MS, 99 * MS + 7)
    pieces = share_cpu_time(positions, edges, PERIOD_NS)
    weights, unsampled_ns = weights_of(pieces, len(positions))
    assert weights.tolist() == [25 * MS] * 4 and unsampled_ns == 0


def test_groups_of_short_bursts_do_not_lend_each_other_time() -> None:
    edges = np.arange(201, dtype=np.int64) * MS
    groups = np.where(np.arange(200) % 4 == 0, 7, 8).astype(np.int64)  # 50 ms and 150 ms
    positions = np.sort(np.concatenate([np.arange(10) * 4 * MS + 5, [MS + 5]])).astype(np.int64)
    pieces = share_cpu_time(positions, edges, PERIOD_NS, groups)
    in_first = positions // MS % 4 == 0
    weights, _ = weights_of(pieces, len(positions))
    assert weights[in_first].sum() == 50 * MS and weights[~in_first].sum() == 150 * MS


def test_nothing_to_share() -> None:
    none = np.zeros(0, np.int64)
    for edges in (none, ints(0), ints(0, 0), ints(0, 0, 0)):
        pieces = share_cpu_time(none, edges, PERIOD_NS)
        assert not len(pieces.length)
    pieces = share_cpu_time(none, ints(0, 5, 9), PERIOD_NS)
    assert pieces.length.sum() == 9 and pieces.sample.tolist() == [-1, -1], "no piece crosses an edge"
    pieces = share_cpu_time(ints(0, 0), ints(0, 0), PERIOD_NS)
    assert not pieces.length.any()


def simulated(chance: np.random.Generator, lengths: npt.NDArray[np.float64]) -> tuple[Ints, Ints, Ints, Ints]:
    """(edges, burst of each sample, how far into it, position): bursts between sleeps, and a clock on the wall."""
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    starts = edges[:-1] + np.cumsum(chance.exponential(2 * MS, len(lengths))).astype(np.int64)
    ticks = np.arange(chance.integers(PERIOD_NS), int(starts[-1] + lengths[-1]), PERIOD_NS)
    burst = np.searchsorted(starts, ticks, side="right") - 1
    into = ticks - starts[burst]
    ran = (burst >= 0) & (into < np.diff(edges)[burst])
    burst, into = burst[ran], into[ran]
    return edges, burst, into, edges[burst] + into


def errors(seed: int, own_part: float, with_groups: bool = True) -> tuple[float, float]:
    """Error of ours and of equal weights, as a part of the CPU time of a program with a known answer.

    Four kinds of bursts, few of them long, each a group. A burst of kind k runs function k for own_part of its time and
    then function k + 1.
    """
    chance = np.random.default_rng(seed)
    kinds = chance.choice(4, 4000, p=[0.06, 0.34, 0.4, 0.2])
    lengths = np.array([120, 3, 0.4, 6])[kinds] * MS * chance.uniform(0.3, 1, len(kinds))
    edges, burst, into, positions = simulated(chance, lengths)
    ran = np.diff(edges)
    own = (ran * own_part).astype(np.int64)
    truth = np.bincount(kinds, own, 4) + np.bincount((kinds + 1) % 4, ran - own, 4)
    function = np.where(into < own[burst], kinds[burst], (kinds[burst] + 1) % 4)
    pieces = share_cpu_time(positions, edges, PERIOD_NS, kinds.astype(np.int64) if with_groups else None)
    weights, _ = weights_of(pieces, len(positions))
    found = np.bincount(function, weights, 4), np.bincount(function, minlength=4) / len(function) * edges[-1]
    return np.abs(found[0] - truth).sum() / edges[-1], np.abs(found[1] - truth).sum() / edges[-1]


def test_what_groups_tell_has_no_error() -> None:
    ours, equal = np.mean([errors(seed, 1.0) for seed in range(30)], axis=0)
    assert ours < 1e-6 and equal > 0.01


@pytest.mark.parametrize(("own_part", "with_groups"), [(0.9, True), (0.7, True), (0.5, True), (1.0, False)])
def test_inside_groups_the_error_is_smaller_than_with_equal_weights(own_part: float, with_groups: bool) -> None:
    ours, equal = np.mean([errors(seed, own_part, with_groups) for seed in range(40)], axis=0)
    assert ours < 0.9 * equal and ours < 0.02


@pytest.mark.parametrize("side", ["begin", "end"])
@pytest.mark.parametrize("segment_ms", [1, 2, 5, 8, 12])
def test_what_runs_shortly_around_a_wait_is_not_starved(side: str, segment_ms: int) -> None:
    """In long bursts a function runs for less than a period after the wake-up, or before the wait."""
    found = []
    for seed in range(30):
        chance = np.random.default_rng(seed)
        edges, burst, into, positions = simulated(chance, chance.uniform(15, 100, 800) * MS)
        from_side = into if side == "begin" else np.diff(edges)[burst] - into
        pieces = share_cpu_time(positions, edges, PERIOD_NS)
        truth = 800 * segment_ms * MS
        found.append(weights_of(pieces, len(positions))[0][from_side < segment_ms * MS].sum() / truth)
    assert 0.88 < np.mean(found) < 1.05
