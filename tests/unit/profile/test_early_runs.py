"""A thread that ran before its switch was seen."""

from __future__ import annotations

import numpy as np

from bpfprof.model.samples import TOTAL_DTYPE, WAIT_DTYPE
from bpfprof.profile.early_runs import end_waits_early


def test_what_the_next_row_tells_is_taken_off_the_row_before() -> None:
    waits, totals = np.zeros(4, WAIT_DTYPE), np.zeros(2, TOTAL_DTYPE)
    waits["thread"] = [1, 0, 1, 1]
    waits["time_ns"] = [300, 150, 100, 200]
    waits["runqueue_ns"] = [50, 20, 10, 5]
    waits["early_ns"] = [3, 7, 9, 4]  # the first of a thread speaks for no row
    totals["early_ns"] = [30, 2]
    end_waits_early(waits, totals)
    assert waits["runqueue_ns"].tolist() == [48, 0, 6, 2], "no more than there is"
    assert waits["time_ns"].tolist() == [298, 130, 96, 197]
    before = waits.copy()
    end_waits_early(waits, totals)
    assert np.array_equal(waits, before), "once"
