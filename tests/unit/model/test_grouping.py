"""Rows that are alike, by numbers: in the order of their columns, whatever these hold."""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof.model.grouping import group_numbers, grouped, numbers_of, order_of, ordered, totals_of


@pytest.mark.parametrize("most", [3, 1 << 19, 1 << 50])
def test_groups_are_in_the_order_of_their_columns(most: int) -> None:
    rng = np.random.default_rng(most)
    columns = [rng.integers(0, most, 400) // (most // 3) * (most // 3) for _ in range(5)]
    rows = [*zip(*(column.tolist() for column in columns))]
    wanted = sorted({*rows})
    first, number = group_numbers(columns)
    assert [rows[place] for place in first] == wanted and [wanted[place] for place in number] == rows
    order, begin = ordered(columns)
    assert [rows[place] for place in order] == sorted(rows) and [rows[place] for place in order[begin]] == wanted
    order, begin = grouped(columns)
    parts = [{rows[place] for place in part} for part in np.split(order, begin[1:])]
    assert all(len(part) == 1 for part in parts) and len(parts) == len(wanted)
    assert [rows[place] for place in order[begin][numbers_of(order, begin)]] == rows


@pytest.mark.parametrize("limit", [1, 1 << 16, (1 << 16) + 1, 1 << 33, (1 << 63) - 1])
@pytest.mark.parametrize("count", [0, 10, 20_000])
def test_many_numbers_are_ordered_as_few_are(count: int, limit: int) -> None:
    values = np.random.default_rng(1).integers(0, limit, count)
    values[::3] = values[:1] if count else 0  # of equal ones the order stays
    assert (order_of(values, limit) == np.argsort(values, kind="stable")).all()


@pytest.mark.parametrize("count", [0, 1, 40, 400])
def test_totals_are_the_sums_of_what_is_alike_most_first(count: int) -> None:
    """Of some rows, which are added up without arrays, as of many."""
    rng = np.random.default_rng(count)
    values, frames, ns = (
        rng.integers(0, 3, count).astype(np.uint8),
        rng.integers(-1, 2, count),
        rng.integers(0, 4, count),
    )
    sums: dict[tuple[int, int], int] = {}
    for value, frame, one_ns in zip(values.tolist(), frames.tolist(), ns.tolist()):
        sums[value, frame] = sums.get((value, frame), 0) + one_ns
    wanted = sorted((-total_ns, *key) for key, total_ns in sums.items())
    assert [(-each.ns, each.value, each.frame) for each in totals_of(values, ns, frames)] == wanted
    of_values = totals_of(values, ns)
    assert {each.value: each.ns for each in of_values} == {
        value: int(ns[values == value].sum()) for value in {*values.tolist()}
    }
    assert all(each.frame == -1 for each in of_values)
