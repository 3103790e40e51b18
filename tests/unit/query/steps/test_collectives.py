"""When ranks come to collectives, against loops made by hand, and by chance."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bpfprof.query.steps.collectives import Collectives, _best, collectives_of
from bpfprof.query.steps.ranks import rank_loops
from bpfprof.query.steps.steps import StepsWanted
from tests.unit.query.steps.test_ranks import MODULE, REDUCE, TENSOR, Ranks, train
from tests.unit.render.profiles import MS, OFF_CPU, ON_CPU, RUNQUEUE, wait
from tests.unit.render.profiles import READY as NO_CPU

US = 1_000
CALL = (train(14), REDUCE)


def run(ranks: Ranks, thread: int, ns: int) -> None:
    ranks.made.spend(thread, ON_CPU, ns, [train(12), MODULE])


def call(ranks: Ranks, thread: int, ns: int) -> None:
    ranks.made.spend(thread, ON_CPU, ns, list(CALL))


def stands(ranks: Ranks, thread: int, ns: int) -> None:
    ranks.made.spend(thread, OFF_CPU, ns, [*CALL, wait("lock")])


def ready(ranks: Ranks, thread: int, ns: int) -> None:
    ranks.made.spend(thread, RUNQUEUE, ns, [*CALL, NO_CPU])


def found_in(ranks: Ranks) -> Collectives:
    loops, _ = rank_loops(ranks.made.build(), "r.bpfprof", StepsWanted())
    found = collectives_of(loops, [loop.zero_ns for loop in loops])
    assert found is not None
    return Collectives(found.came_ns - loops[0].zero_ns, found.counted_by)


@pytest.mark.parametrize("seed", range(30))
def test_when_each_comes_against_what_was_made(seed: int) -> None:
    """Ranks that compute, come, and leave at times by chance, some of them when others have come to the next one.

    A call may be stopped for want of a CPU, and a wait may be in two parts.
    """
    chance = random.Random(seed)
    count, of_step = chance.randint(2, 5), chance.randint(1, 4)
    ranks = Ranks(count)
    now, came = [0] * count, []
    for number in range(20 * of_step):
        is_first, came_ns = number % of_step == 0, []
        for rank, thread in enumerate(ranks.threads):
            ns = chance.randint(20, 40) * MS if is_first else chance.randint(100, 500) * US
            run(ranks, thread, ns)
            came_ns.append(now[rank] + ns)
            call(ranks, thread, 50 * US)
            now[rank] += ns + 50 * US
            if chance.random() < 0.2:
                stopped_ns = chance.randint(1, 20) * MS
                ready(ranks, thread, stopped_ns)
                call(ranks, thread, 100 * US)
                now[rank] += stopped_ns + 100 * US
        came.append([ns + 50 * US for ns in came_ns])
        all_ns = max(now) + 300 * US
        for rank, thread in enumerate(ranks.threads):
            left_ns = all_ns + (chance.randint(1, 10) * MS if chance.random() < 0.3 else chance.randint(0, 200) * US)
            part_ns = chance.randint(100 * US, left_ns - now[rank] - 50 * US)
            stands(ranks, thread, part_ns)
            call(ranks, thread, 20 * US)
            stands(ranks, thread, left_ns - now[rank] - part_ns - 20 * US)
            now[rank] = left_ns
    np.testing.assert_array_equal(found_in(ranks).came_ns, np.array(came).T)


def test_who_does_not_wait_comes_last() -> None:
    """All others go on then: when it came is known by that."""
    ranks = Ranks(3)
    for _ in range(10):
        for thread in ranks.threads:
            is_last = thread == ranks.threads[1]
            run(ranks, thread, (40 if is_last else 20) * MS)
            if not is_last:
                stands(ranks, thread, 20 * MS)
            ranks.run(thread, 5, train(13), TENSOR)
            stands(ranks, thread, 10 * MS)
    found = found_in(ranks)
    begin_ns = np.arange(11) * 55 * MS
    assert found.came_ns.shape == (3, 20) and found.came_ns[1, ::2].tolist() == (begin_ns[:-1] + 40 * MS).tolist()
    assert found.later_ns(1, begin_ns) == 20 * MS and found.later_ns(0, begin_ns) == 0


def test_who_asks_again_and_again_comes_when_it_begins_to() -> None:
    """It is on a CPU in the collective, as NCCL is."""
    ranks = Ranks(2)
    for _ in range(10):
        for thread in ranks.threads:
            is_late = thread == ranks.threads[1]
            run(ranks, thread, (40 if is_late else 20) * MS)
            ranks.run(thread, 5 if is_late else 25, *CALL)
            ranks.run(thread, 5, train(13), TENSOR)
    assert found_in(ranks).later_ns(1, np.arange(11) * 50 * MS) == 20 * MS


def test_no_rank_waits() -> None:
    ranks = Ranks(2)
    for _ in range(10):
        for thread in ranks.threads:
            run(ranks, thread, 50 * MS)
            ranks.run(thread, 5, train(13), TENSOR)
    loops, _ = rank_loops(ranks.made.build(), "r.bpfprof", StepsWanted())
    assert len(loops) == 2 and collectives_of(loops, [loop.zero_ns for loop in loops]) is None


def test_of_a_rank_that_was_not_seen_to_communicate_nothing_is_told() -> None:
    """As where its stacks have no names: it is not the last one to come for that."""
    ranks = Ranks(3)
    for _ in range(10):
        for thread in ranks.threads:
            run(ranks, thread, 20 * MS)
            if thread == ranks.threads[1]:
                run(ranks, thread, 20 * MS)
            else:
                stands(ranks, thread, 20 * MS)
            ranks.run(thread, 5, train(13), TENSOR)
    loops, _ = rank_loops(ranks.made.build(), "r.bpfprof", StepsWanted())
    assert len(loops) == 3 and collectives_of(loops, [loop.zero_ns for loop in loops]) is None


def test_parts_of_the_first_and_the_last_step_are_counted_as_parts() -> None:
    """Four collectives a step, of which the window has the last of the first step and half of the last."""
    came_ns = np.array([[step * 100 + each for step in range(7) for each in range(4)][3:-2]] * 3, np.float64)
    came_ns[1] += 10
    begin_ns = np.arange(8) * 100
    assert Collectives(came_ns, 0).later_ns(1, begin_ns) == pytest.approx(4 * 10)


def test_who_comes_earlier_to_some_is_not_less_late_to_others() -> None:
    """Those that share a CPU leave a collective one after another, and come so to the next."""
    came_ns = np.array([[step * 100 + each for step in range(5) for each in range(2)]] * 4, np.float64)
    came_ns[1] += [20, -10] * 5
    found = Collectives(came_ns, 0)
    assert found.later_ns(1, np.arange(6) * 100) == 20 and found.later_ns(0, np.arange(6) * 100) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_best_pairs_against_all_there_are(seed: int) -> None:
    """Of intervals by chance: no other choice of pairs without a common one is worth more."""
    chance = random.Random(seed)
    borders = [sorted(chance.sample(range(60), 2 * chance.randint(1, 5))) for _ in range(2)]
    mine, theirs = ([*zip(each[::2], each[1::2])] for each in borders)
    pairs = [
        (one, other)
        for one, (begin, end) in enumerate(mine)
        for other, (its_begin, its_end) in enumerate(theirs)
        if begin < its_end and its_begin < end and chance.random() < 0.9
    ]
    worth = [chance.random() for _ in pairs]
    choices = [[each for each in range(len(pairs)) if number >> each & 1] for number in range(1 << len(pairs))]
    best = max(
        sum(worth[each] for each in choice)
        for choice in choices
        if all(len({pairs[each][side] for each in choice}) == len(choice) for side in range(2))
    )
    ones, others = (np.array([pair[side] for pair in pairs], np.int64) for side in range(2))
    found = _best(ones, others, np.array(worth))
    assert all(len({pairs[each][side] for each in found}) == len(found) for side in range(2))
    assert sum(worth[each] for each in found) == pytest.approx(best)
