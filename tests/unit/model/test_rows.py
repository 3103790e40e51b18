"""Rows that are moved as bytes are those that numpy would have moved."""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof.model.rows import copied, one_after_another, picked
from bpfprof.model.samples import WAIT_DTYPE
from bpfprof.model.spans import SPAN_DTYPE


def some_rows(dtype: np.dtype[np.void], count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)


@pytest.mark.parametrize("dtype", [WAIT_DTYPE, SPAN_DTYPE])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_the_rows_that_were_asked_for(dtype: np.dtype[np.void], count: int) -> None:
    rows = some_rows(dtype, count)
    for which in (np.arange(count) % 3 == 0, np.arange(count)[::-2], np.zeros(count, bool), np.zeros(0, np.int64)):
        assert picked(rows, which).tobytes() == rows[which].tobytes()


def test_of_every_other_row() -> None:
    rows = some_rows(SPAN_DTYPE, 9)
    for which in (np.array([4, 0]), np.array([True, False, True, False, False])):
        assert picked(rows[::2], which).tobytes() == rows[::2][which].tobytes()
    assert copied(rows[::2]).tobytes() == rows[::2].tobytes()
    assert one_after_another(SPAN_DTYPE, [rows[::2]]).tobytes() == rows[::2].tobytes()


def test_what_was_picked_or_copied_is_not_what_was_there() -> None:
    rows = some_rows(SPAN_DTYPE, 10)
    before = rows.tobytes()
    for other in (picked(rows, np.ones(10, bool)), picked(rows, np.arange(10)), copied(rows)):
        assert other.tobytes() == before and other.dtype == rows.dtype
        other["count"] += 1
        assert rows.tobytes() == before


def test_one_after_another() -> None:
    parts = [some_rows(WAIT_DTYPE, count) for count in (3, 0, 5)]
    assert one_after_another(WAIT_DTYPE, parts).tobytes() == np.concatenate(parts).tobytes()
    assert len(one_after_another(WAIT_DTYPE, [])) == 0
    with pytest.raises(ValueError, match="different tables"):
        one_after_another(WAIT_DTYPE, [some_rows(SPAN_DTYPE, 1)])
