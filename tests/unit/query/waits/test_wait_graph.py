"""Cycles and chains of threads that wait for one another."""

from __future__ import annotations

import pytest

from bpfprof.model.ids import Pid, Tid
from bpfprof.model.now import WAITING, ThreadNow, WaitsFor
from bpfprof.query.waits.wait_graph import chains, cycles, endless_waits


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


@pytest.mark.parametrize(
    ("kind", "has_end", "counts"),
    [
        ("lock", False, True),
        ("lock", True, False),
        ("gil", False, True),
        ("pipe", False, True),
        ("answer", False, False),
    ],
)
def test_who_waits_for_a_time_at_most_is_in_no_deadlock(kind: str, has_end: bool, counts: bool) -> None:
    wanted = WaitsFor(kind, "", Tid(2), Pid(1), has_end=has_end)
    thread = ThreadNow(Tid(1), "a", WAITING, "lock", 1.0, False, False, wanted, [])
    assert endless_waits([thread]) == ({1: 2} if counts else {})
