"""What the scheduler tells of a wait when the thread leaves the CPU again is in the row that is written."""

from __future__ import annotations

import random

import numpy as np

from bpfprof.abi import dtypes
from bpfprof.array_types import NDArray
from bpfprof.capture.last_waits import LastWaits
from bpfprof.model.samples import WAIT_DTYPE

NOBODY = np.zeros(0, np.int64)
NOTHING = np.zeros(0, dtypes.EVENT_DTYPE)
Rows = NDArray[np.void]


def rows(*content: tuple[int, int, int, int], dtype: np.dtype[np.void] = WAIT_DTYPE) -> Rows:
    """Waits of (thread, time_ns, blocked_ns, runqueue_ns)."""
    made = np.zeros(len(content), dtype)
    for position, values in enumerate(content):
        made["thread"][position], made["time_ns"][position] = values[:2]
        made["blocked_ns"][position], made["runqueue_ns"][position] = values[2:]
    return made


def told(*content: tuple[int, int], dtype: np.dtype[np.void] = dtypes.EVENT_DTYPE) -> Rows:
    """(early_ns, enqueue_ns) of events, or of records of threads."""
    made = np.zeros(len(content), dtype)
    made["early_ns"], made["enqueue_ns"] = [early for early, _ in content], [late for _, late in content]
    return made


def seen(waits: Rows) -> list[tuple[int, int, int, int]]:
    return waits[["thread", "time_ns", "blocked_ns", "runqueue_ns"]].tolist()  # type: ignore[no-any-return]


def test_a_wait_comes_out_corrected_when_the_next_one_is_there() -> None:
    last = LastWaits()
    assert seen(last.follow(rows((1, 100, 9, 50), (0, 150, 9, 20)), told((3, 3), (7, 7)), NOBODY, NOTHING)) == []
    final = last.follow(rows((1, 200, 9, 5), (1, 300, 9, 5)), told((10, 15), (4, 9)), NOBODY, NOTHING)
    assert seen(final) == [(1, 90, 24, 25), (1, 196, 10, 0)], "no more than there is"
    assert seen(last.take_rest()) == [(0, 150, 9, 20), (1, 300, 9, 5)] and not len(last.take_rest())


def test_run_queue_that_the_scheduler_denies_at_the_end_was_a_wait() -> None:
    last = LastWaits()
    last.follow(rows((1, 100, 9, 50), (2, 100, 9, 50)), told((0, 0), (0, 0)), NOBODY, NOTHING)
    assert seen(last.take_rest({1: 40})) == [(1, 100, 49, 10), (2, 100, 9, 50)]


def test_the_end_of_a_thread_tells_of_its_last_wait() -> None:
    last = LastWaits()
    last.follow(rows((1, 100, 9, 50)), told((0, 0)), NOBODY, NOTHING)
    ends = told((1, 0), (2, 0), (3, 0))
    ends["time_ns"] = 400
    final = last.follow(rows((2, 300, 9, 50)), told((5, 5)), np.array([2, 1, 7]), ends)
    assert seen(final) == [(1, 98, 9, 48), (2, 299, 9, 49)]
    assert not len(last.take_rest())


def test_a_thread_that_goes_on_after_its_end() -> None:
    """Another one of its process has called execve."""
    last = LastWaits()
    end = told((5, 5))
    end["time_ns"] = 200
    final = last.follow(rows((1, 100, 9, 50), (1, 300, 9, 50)), told((0, 0), (0, 0)), np.array([1]), end)
    assert seen(final) == [(1, 95, 14, 40)]
    assert seen(last.take_rest()) == [(1, 300, 9, 50)]


def test_totals_tell_of_threads_that_left_the_cpu_since() -> None:
    last = LastWaits()
    last.follow(rows((1, 100, 9, 50), (4, 100, 9, 50), (9, 100, 9, 50)), told((0, 0), (0, 0), (0, 0)), NOBODY, NOTHING)
    records = told((5, 0), (6, 1), dtype=dtypes.THREAD_DTYPE)
    records["since_ns"] = [100, 130]
    assert seen(last.settle(np.array([1, 4]), records)) == [(4, 94, 10, 43)], "thread 1 runs, of 9 nothing is known"
    assert seen(last.take_rest()) == [(1, 100, 9, 50), (9, 100, 9, 50)]


def test_any_batches_give_what_one_batch_gives() -> None:
    chance = random.Random(5)
    waits = [
        (chance.randrange(4), 1000 + 1000 * time, chance.randrange(99), chance.randrange(99)) for time in range(400)
    ]
    tells = [(chance.randrange(60), chance.randrange(60)) for _ in waits]
    whole = LastWaits()
    expected = [*seen(whole.follow(rows(*waits), told(*tells), NOBODY, NOTHING)), *seen(whole.take_rest())]
    last, found, place = LastWaits(), [], 0
    while place < len(waits):
        end = place + chance.randrange(9)
        found += seen(last.follow(rows(*waits[place:end]), told(*tells[place:end]), NOBODY, NOTHING))
        place = end
    found += seen(last.take_rest())
    assert sorted(found) == sorted(expected)
    for thread in range(4):
        times = [row[1] for row in found if row[0] == thread]
        assert times == sorted(times)
