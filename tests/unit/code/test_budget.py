"""What a process may have recorded, whatever it does, and what others have then."""

from __future__ import annotations

import pytest

from bpfprof.code import budget
from bpfprof.code.budget import Budget


def test_each_process_has_its_own_and_gets_more_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(budget.time, "monotonic", lambda: now_s)
    left = Budget(at_once=100, per_s=10, of_all=1000)
    left.spend(1, 90)
    assert not left.is_spent(1) and not left.is_spent(2)
    left.spend(1, 30)
    assert left.is_spent(1) and not left.is_spent(2), "the last ones are not cut in two"
    now_s += 1
    assert left.is_spent(1)
    now_s += 2
    assert not left.is_spent(1)
    now_s += 1e6
    left.spend(1, 101)
    assert left.is_spent(1), "it does not save more than it has at once"


def test_all_have_so_much_together() -> None:
    left = Budget(at_once=100, per_s=10, of_all=1000)
    for pid in range(10):
        assert not left.is_spent(pid)
        left.spend(pid, 100)
    assert all(map(left.is_spent, range(10)))


def test_who_comes_when_all_is_spent_has_a_small_part_still() -> None:
    """Twenty take all there is. An honest one that begins then has what it needs, and a crowd gets little more."""
    left = Budget(at_once=100_000, per_s=2_000, of_all=2_000_000)
    for pid in range(20):
        left.spend(pid, 100_000)
    for _ in range(20):
        assert not left.is_spent(20)
        left.spend(20, 1000)
    taken = 0
    for pid in range(100, 3100):
        while not left.is_spent(pid):
            left.spend(pid, 100)
            taken += 100
    assert taken < 2_000_000
    left.spend(4000, 4_000_000)
    assert left.is_spent(4001), "so much once more, and nothing beyond it"


@pytest.mark.parametrize("per_s", [10, 0])
def test_who_has_nearly_as_much_as_at_first_is_not_remembered(per_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(budget.time, "monotonic", lambda: now_s)
    left = Budget(at_once=100, per_s=per_s, of_all=1_000_000)
    left.spend(1, 20_000)
    for pid in range(2, 10_000):
        now_s += 0.1
        left.spend(pid, 5)
    assert len(left._left_of) <= 1025 and len(left._had) <= 1025
    assert left.is_spent(1)
