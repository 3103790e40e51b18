"""Cycles and chains of threads that wait for one another."""

from __future__ import annotations

import pytest

from bpfprof.query.waits.wait_graph import chains, cycles


@pytest.mark.parametrize(
    ("waits_for", "found"),
    [
        ({}, []),
        ({1: 2, 2: 3}, []),
        ({1: 2, 2: 1}, [[1, 2]]),
        ({3: 1, 1: 2, 2: 3}, [[1, 2, 3]]),
        ({4: 4}, [[4]]),  # a lock that its own thread takes again
        ({1: 5, 5: 6, 6: 5, 0: 1}, [[5, 6]]),  # those that lead into a cycle are no part of it
        ({1: 2, 2: 1, 7: 8, 8: 7}, [[1, 2], [7, 8]]),
    ],
)
def test_cycles(waits_for: dict[int, int], found: list[list[int]]) -> None:
    assert cycles(waits_for) == found


def test_chains_begin_where_no_one_waits_and_do_not_end_in_cycles() -> None:
    assert chains({1: 2, 2: 3, 4: 3, 7: 8, 8: 7, 6: 7}) == [[1, 2, 3], [4, 3]]
