"""Waits without a stack: their time goes to those of their kind that were chosen to stand for them, and to no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bpfprof import array_types as npt
from bpfprof.account.estimate import SUM_DTYPE, alike_as_one, estimated, laid, spread, spread_by_thread, spread_pieces
from bpfprof.model.profile import Profile
from bpfprof.model.samples import SHORT_DTYPE, UNSAMPLED
from bpfprof.model.spans import SPAN_DTYPE, How, ThreadState
from bpfprof.model.statuses import Status
from tests.unit.profile.views import built, shown_ms, spent_ms, text
from tests.unit.recording.hand_made import FUTEX, IOCTL, MS, START_NS, HandMade, Story

OFF_CPU, NOT_SAMPLED = ThreadState.OFF_CPU, {"status": int(Status.NOT_SAMPLED)}


def ended(made: HandMade, *stories: Story) -> Profile:
    """Now; all are as long."""
    for story in stories:
        story.total()
    return built(made, (stories[0].now_ns - START_NS) / MS)


def test_a_chosen_wait_stands_for_others_like_it(made: HandMade) -> None:
    """By their number and length; not one that has a stack in any case, nor one for another reason."""
    certain, rare, often = (made.stack((made.code(name), 0, 0)) for name in ("certain", "rare", "often"))
    story = Story.begin(made).run(MS).block(5 * MS, 0, certain, FUTEX).run(MS).block(2 * MS, MS, rare, FUTEX, one_in=4)
    story.run(MS).block(2 * MS, 0, often, FUTEX, one_in=2).run(MS)
    story.block_short(8 * MS, 3 * MS, syscall=FUTEX, flags=UNSAMPLED, count=8).run(MS)
    story.block(MS, 0, certain, IOCTL, one_in=1).run(MS).block_short(3 * MS, syscall=IOCTL, flags=UNSAMPLED).run(MS)
    profile = ended(made, story)
    assert spent_ms(profile, 0, OFF_CPU) == {
        ("certain", "wait lock"): 5,
        ("rare", "wait lock"): 2 + 6,
        ("often", "wait lock"): 2 + 2,
        ("certain", "wait syscall ioctl"): 1,
        ("not_sampled", "wait syscall ioctl"): 3,
    }
    assert spent_ms(profile, 0, ThreadState.RUNQUEUE) == {("rare", "runqueue"): 1 + 3}
    weights = {text(profile, profile.stacks[row["stack"]][0]): row for row in profile.weights if row["reason"] == 2}
    assert {name: int(row["count"]) for name, row in weights.items()} == {"certain": 1, "rare": 7, "often": 3}
    assert weights["rare"]["max_ns"] == 2 * MS, "as long as it was"
    assert dict(profile.threads[0].off_by_reason) == {"lock": 17 * MS, "syscall ioctl": 4 * MS}
    assert (profile.quality.short_count, profile.quality.unsampled_count) == (0, 9)


def test_what_runs_speaks_for_what_others_took_from_it(made: HandMade) -> None:
    """In its own code; in a system call, or when it had slept, nothing tells where it was."""
    often, rare = (made.stack((made.code(name), 0, 0)) for name in ("often", "rare"))
    seen = zip((5 * MS, 15 * MS, 25 * MS, 35 * MS), (often, often, often, rare))
    story = Story.begin(made).run(40 * MS, *seen)
    story.block_short(0, 4 * MS, syscall=-1, task_state=0, count=40).run(1)
    story.block_short(0, 8 * MS, syscall=-1, task_state=0, flags=UNSAMPLED, count=3).run(1)
    story.block_short(0, 2 * MS, syscall=FUTEX, task_state=0).run(1).block_short(0, MS, syscall=-1).run(1)
    profile = ended(made, story)
    spent = spent_ms(profile, 0, ThreadState.RUNQUEUE)
    assert {key: round(ms) for key, ms in spent.items()} == {
        ("often", "runqueue"): 9,
        ("rare", "runqueue"): 3,
        ("short_waits", "runqueue"): 3,
    }
    assert profile.quality.short_ns == 3 * MS


def test_without_a_chosen_one_they_are_not_sampled(made: HandMade) -> None:
    """Nor do other threads speak for them."""
    stack = made.stack((made.code("only"), 0, 0))
    story = Story.begin(made).run(MS).block(2 * MS, 0, stack, IOCTL, one_in=5).run(MS)
    story.block_short(6 * MS, flags=UNSAMPLED).run(2 * MS)
    other = Story.begin(made, tid=101).run(MS).block_short(9 * MS, MS, syscall=IOCTL, flags=UNSAMPLED).run(MS)
    profile = ended(made, story, other)
    assert spent_ms(profile, 0, OFF_CPU) == {("only", "wait syscall ioctl"): 2, ("not_sampled", "wait sleep"): 6}
    assert spent_ms(profile, 1) == {
        ("not_sampled",): 2,
        ("not_sampled", "wait syscall ioctl"): 9,
        ("not_sampled", "runqueue"): 1,
    }
    assert shown_ms(profile, 1) == [("not_sampled", 0, 2), ("wait syscall ioctl", 2, 9), ("runqueue", 11, 1)]


def test_a_long_wait_that_was_not_chosen(made: HandMade) -> None:
    """It keeps its moment; its time goes to those that were."""
    stack = made.stack((made.code("f"), 0, 0))
    story = Story.begin(made).run(MS).block(12 * MS, MS, 0, FUTEX, **NOT_SAMPLED).run(MS)
    profile = ended(made, story)
    assert spent_ms(profile)[("not_sampled", "wait lock")] == 12
    assert (profile.quality.truncated_counts, profile.quality.unsampled_count) == ({}, 1)
    made.totals.clear()
    story.block(MS, 0, stack, FUTEX, one_in=30).run(MS)
    made.end = None
    profile = ended(made, story)
    assert spent_ms(profile, 0, OFF_CPU) == {("f", "wait lock"): 13}
    assert shown_ms(profile)[1] == ("wait lock", 1, 12)


def population(chance: np.random.Generator, count: int) -> npt.NDArray[np.void]:
    """Waits of three places, each with its own lengths and its own chance to be chosen."""
    waits = np.zeros(count, SPAN_DTYPE)
    waits["stack"] = chance.choice(4, count, p=[0, 0.6, 0.3, 0.1])
    waits["duration_ns"] = chance.exponential(np.array([0, 20_000, 90_000, 400_000])[waits["stack"]]) + 1
    waits["one_in"] = chance.integers(1, np.array([1, 40, 9, 4])[waits["stack"]] + 1)
    waits["state"], waits["reason"], waits["count"] = OFF_CPU, 2, 1
    waits["stands_for_ns"] = waits["duration_ns"]
    return waits


def sampled(chance: np.random.Generator, waits: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """As the kernel side does: the others have no stack; but for a few long ones they are only added up."""
    is_chosen = chance.random(len(waits)) * waits["one_in"] < 1
    rest = np.zeros(1, SPAN_DTYPE)
    rest["state"], rest["reason"], rest["status"], rest["how"] = OFF_CPU, 2, Status.NOT_SAMPLED, How.SUMMED
    for name in ("count", "duration_ns", "stands_for_ns"):
        rest[name] = waits[name][~is_chosen].sum()
    return np.concatenate([waits[is_chosen], rest])


def estimate(spans: npt.NDArray[np.void], block_rows: int = 1 << 16) -> npt.NDArray[np.void]:
    def blocks() -> Iterator[npt.NDArray[np.void]]:
        return (spans[begin : begin + block_rows].copy() for begin in range(0, len(spans), block_rows))

    return np.concatenate(list(estimated(blocks)))


def by_stack(spans: npt.NDArray[np.void], column: str) -> Any:
    return np.bincount(spans["stack"], spans[column], 4)


def test_estimates_are_right_on_average() -> None:
    found, truth = [], []
    for seed in range(300):
        chance = np.random.default_rng(seed)
        waits = population(chance, 3000)
        spans = estimate(sampled(chance, waits))
        for column in ("stands_for_ns", "count"):
            assert spans[column].sum() == waits["duration_ns" if column == "stands_for_ns" else column].sum()
        found.append([by_stack(spans, "stands_for_ns"), by_stack(spans, "count")])
        truth.append([by_stack(waits, "duration_ns"), by_stack(waits, "count")])
    means, wanted = np.mean(found, axis=0), np.mean(truth, axis=0)
    standard_errors = np.std(np.array(found) - truth, axis=0) / np.sqrt(len(found))
    assert (np.abs(means - wanted) <= 3 * standard_errors).all(), (means, wanted, standard_errors)
    assert (standard_errors < 0.01 * wanted.clip(1)).all(), "near enough to tell"


@pytest.mark.parametrize("block_rows", [1, 7, 100])
def test_blocks_make_no_difference(block_rows: int) -> None:
    chance = np.random.default_rng(5)
    spans = sampled(chance, population(chance, 500))
    assert np.array_equal(estimate(spans, block_rows), estimate(spans))


@pytest.mark.parametrize("seed", range(10))
def test_gaps_of_many_threads_are_filled_as_those_of_each(seed: int) -> None:
    chance = np.random.default_rng(seed)
    of_threads = []
    for thread in range(40):
        of_it = np.zeros(int(chance.integers(1, 9)), SUM_DTYPE)
        of_it["thread"], of_it["count"] = thread, chance.integers(1, 100, len(of_it))
        of_it["ns"] = chance.choice([1, 5, 10**6, 10**9], len(of_it))
        of_threads.append(of_it)
    all_ns = np.array([chance.choice([1, 3, int(each["ns"].sum()), 10**12]) for each in of_threads], np.int64)
    sums = np.concatenate(of_threads)
    begin = np.flatnonzero(np.diff(sums["thread"].astype(np.int64), prepend=-1))
    for part in (0, 0.3):
        before_ns = (all_ns * part).astype(np.int64)
        gaps_ns = np.maximum(1, (all_ns - before_ns) // (1 + 3 * bool(part)))
        of_gaps = zip(of_threads, gaps_ns, before_ns.tolist(), all_ns.tolist())
        alone = [spread(gap_ns[None], of_it, *passed) for of_it, gap_ns, *passed in of_gaps]
        found = spread_by_thread(gaps_ns, sums, begin, before_ns, all_ns)
        for amounts, expected in zip(found, zip(*alone)):
            assert amounts.tolist() == np.concatenate([each[0] for each in expected]).tolist()
        if not part:
            assert found[1].tolist() == sums["count"].tolist()
    assert not any(map(len, spread_by_thread(all_ns[:0], sums[:0], begin[:0], all_ns[:0], all_ns[:0])))


@pytest.mark.parametrize("seed", range(10))
def test_tiny_gaps_take_nothing_from_a_sum(seed: int) -> None:
    """In gaps of some nanoseconds rounding can take more than there is."""
    chance = np.random.default_rng(seed)
    gaps = np.append(chance.integers(1, 4, 3000), 1_000_000)
    sums = np.zeros(8, SUM_DTYPE)
    sums["ns"] = chance.integers(1, 10**6, len(sums))
    nanoseconds, _ = spread(gaps, sums)
    together, _ = spread(gaps.sum(keepdims=True), sums)
    assert (nanoseconds >= 0).all() and (nanoseconds.sum(axis=1) == gaps).all()
    assert nanoseconds.sum(axis=0).tolist() == together[0].tolist()


@pytest.mark.parametrize("seed", range(10))
def test_sums_are_spread_to_the_nanosecond(seed: int) -> None:
    chance = np.random.default_rng(seed)
    gaps = chance.integers(1, 10 ** int(chance.integers(1, 9)), int(chance.integers(1, 200)))
    sums = np.zeros(int(chance.integers(1, 8)), SUM_DTYPE)
    sums["ns"], sums["count"] = chance.integers(1, 1 << 40, len(sums)), chance.integers(0, 999, len(sums))
    nanoseconds, counts = spread(gaps, sums)
    assert (nanoseconds >= 0).all() and (nanoseconds.sum(axis=1) == gaps).all() and (counts >= 0).all()
    assert counts.sum(axis=0).tolist() == sums["count"].tolist()
    wanted = sums["ns"] / sums["ns"].sum() * gaps.sum()
    assert np.abs(nanoseconds.sum(axis=0) - wanted).max() <= len(gaps) * len(sums)


def test_gaps_that_are_looked_at_in_parts_have_what_they_have_together() -> None:
    sums = np.zeros(3, SUM_DTYPE)
    sums["ns"], sums["count"] = [700, 200, 100], [30, 20, 7]
    gaps = np.array([100, 0, 250, 50, 300, 200, 100], np.int64)
    whole = spread(gaps, sums)
    parts = [spread(gaps[begin : begin + 2], sums, int(gaps[:begin].sum()), int(gaps.sum())) for begin in (0, 2, 4, 6)]
    for place in (0, 1):
        assert np.array_equal(np.concatenate([part[place] for part in parts]), whole[place])


@pytest.mark.parametrize("seed", range(10))
def test_sums_laid_behind_each_other_fill_the_same_gaps(seed: int) -> None:
    chance = np.random.default_rng(seed)
    gaps = chance.integers(1, 10**6, int(chance.integers(1, 200)))
    sums = np.zeros(int(chance.integers(1, 64)), SUM_DTYPE)
    sums["ns"], sums["count"] = chance.integers(1, 1 << 40, len(sums)), chance.integers(0, 999, len(sums))
    for pieces in (laid, spread_pieces):
        gap, which, into, ns, count = pieces(gaps, sums, 0, int(gaps.sum()))
        assert (ns > 0).all() and (np.bincount(gap, ns, len(gaps)) == gaps).all()
        assert ((into >= 0) & (into + ns <= gaps[gap])).all()
        wanted = sums["ns"] / sums["ns"].sum() * gaps.sum()
        assert np.abs(np.bincount(which, ns, len(sums)) - wanted).max() <= len(gaps) * len(sums)
        there = np.isin(np.arange(len(sums)), which)
        if pieces is laid:
            assert (np.bincount(which, count, len(sums))[there] == sums["count"][there]).all()


def test_short_waits_of_one_kind_are_one_whose_numbers_may_be_large() -> None:
    rows = np.zeros(400, SHORT_DTYPE)
    rows["thread"], rows["syscall"] = np.arange(400) % 2, np.where(np.arange(400) % 4 < 2, 7, -1)
    rows["runqueue_ns"], rows["count"] = 10, 1 << 31
    rows["blocked_ns"] = np.where(np.arange(400) < 40, 0, 5)
    found = np.sort(alike_as_one(rows), order=["thread", "syscall", "blocked_ns"])
    assert found["thread"].tolist() == [0] * 4 + [1] * 4 and found["syscall"].tolist() == [-1, -1, 7, 7] * 2
    assert found["blocked_ns"].tolist() == [0, 450] * 4
    assert found["runqueue_ns"].tolist() == [100, 900] * 4
    assert found["count"].tolist() == [10 << 31, 90 << 31] * 4
    assert not len(alike_as_one(rows[:0]))
