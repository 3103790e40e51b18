"""What the scheduler tells of a wait when the thread leaves the CPU again."""

from __future__ import annotations

import numpy as np

from bpfprof.account.scheduler_times import settle_times
from bpfprof.model.samples import TOTAL_DTYPE, WAIT_DTYPE


def test_a_thread_that_ran_before_its_switch_was_seen() -> None:
    waits, totals = np.zeros(4, WAIT_DTYPE), np.zeros(2, TOTAL_DTYPE)
    waits["thread"] = [1, 0, 1, 1]
    waits["time_ns"] = [300, 150, 100, 200]
    waits["runqueue_ns"] = [50, 20, 10, 5]
    waits["early_ns"] = [3, 7, 9, 4]  # the first of a thread speaks for no row
    totals["early_ns"] = [30, 2]
    settle_times(waits, totals)
    assert waits["runqueue_ns"].tolist() == [48, 0, 6, 2], "no more than there is"
    assert waits["time_ns"].tolist() == [298, 130, 96, 197]
    before = waits.copy()
    settle_times(waits, totals)
    assert np.array_equal(waits, before), "once"


def test_the_way_to_a_run_queue_is_a_part_of_the_wait() -> None:
    waits, totals = np.zeros(3, WAIT_DTYPE), np.zeros(2, TOTAL_DTYPE)
    waits["thread"] = [0, 1, 0]
    waits["time_ns"] = [100, 150, 200]
    waits["runqueue_ns"], waits["blocked_ns"] = [50, 20, 10], [1, 2, 3]
    waits["early_ns"], waits["enqueue_ns"] = [0, 0, 5], [7, 7, 40]
    totals["early_ns"], totals["enqueue_ns"] = [4, 0], [9, 13]
    settle_times(waits, totals)
    assert waits["time_ns"].tolist() == [95, 150, 196]
    assert waits["runqueue_ns"].tolist() == [5, 7, 0], "no more than is left"
    assert waits["blocked_ns"].tolist() == [41, 15, 9]
    before = waits.copy()
    settle_times(waits, totals)
    assert np.array_equal(waits, before), "once"
