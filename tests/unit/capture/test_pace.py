"""How often a drain is due, and what is looked at in turns."""

from __future__ import annotations

import pytest

from bpfprof.capture import pace
from bpfprof.capture.pace import Pace


@pytest.fixture(autouse=True)
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    return now


def drained(made: Pace, event_count: int = 10) -> Pace:
    """After the first drain, which took next to nothing."""
    made.taken(event_count)
    made.cost(0.0)
    return made


@pytest.mark.parametrize(
    ("made", "after_s"),
    [
        (Pace(of_all=False), 0.375),
        (Pace(of_all=False, part_s=60.0), 7.5),
        (Pace(of_all=False, part_s=2.4), 1.2),
        (Pace(of_all=True, part_s=60.0, is_quiet=True), 7.5),
        (Pace(of_all=True, part_s=3.0, is_quiet=True), 1.5),
    ],
)
def test_a_drain_is_due_after(made: Pace, after_s: float) -> None:
    assert drained(made).due_s(None) == pytest.approx(1000.0 + after_s)


def test_a_part_ends_in_time(now_s: list[float]) -> None:
    made = Pace(of_all=False, part_s=10.0)
    made.totals_read()
    due = []
    for _ in range(5):
        drained(made)
        due.append(round(made.due_s(None) - 1000.0, 2))
        now_s[0] = made.due_s(None) + 0.1  # a little late
    assert due == [5.0, 10.0, 15.1, 20.2, 25.3]


def test_what_is_new_is_drained_sooner() -> None:
    made = drained(Pace(of_all=True, part_s=60.0, is_quiet=True))
    made.wake(is_news=False)
    assert made.due_s(None) == 1007.5
    made.wake(is_news=True)
    assert made.due_s(None) == 1001.0  # something was born
    assert drained(made).due_s(None) == 1007.5  # it was looked at
    made.met(is_new=True, is_urgent=True)
    assert made.due_s(None) == 1000.05
    assert made.due_s(0.0) == 1000.02


def test_what_nothing_tells_of_is_looked_for_now_and_then(now_s: list[float]) -> None:
    made = Pace(of_all=False, part_s=10.0)
    assert made.news_due()
    for look in (lambda: made.wake(is_news=False), lambda: drained(made)):
        look()
        assert not made.news_due()
        now_s[0] += 4.9
        assert not made.news_due()
        now_s[0] += 0.1
        assert made.news_due()


@pytest.mark.parametrize(("youngest_s", "after_s"), [(0.0, 0.02), (0.2, 0.02), (1.0, 0.1), (2.5, 0.25), (4.9, 0.25)])
@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_program_is_looked_at_again_after_a_tenth_of_its_age(
    youngest_s: float, after_s: float, is_quiet: bool
) -> None:
    made = drained(Pace(of_all=is_quiet, part_s=60.0 * is_quiet, is_quiet=is_quiet))
    assert made.due_s(youngest_s) == pytest.approx(1000.0 + after_s)


def test_where_nothing_is_new_drains_are_rare() -> None:
    made = Pace(of_all=False)
    for _ in range(5):
        drained(made)
    assert made.due_s(None) == 1001.0
    assert made.due_s(0.5) == 1000.05  # another program has begun
    made.met(is_new=True, is_urgent=False)
    assert made.due_s(None) == 1000.25
    for _ in range(5):
        drained(made)
    assert drained(made, event_count=6_000).due_s(None) == 1000.25


def test_many_events_are_drained_soon() -> None:
    assert drained(Pace(of_all=False), event_count=50_000).due_s(None) == 1000.05


@pytest.mark.parametrize(("of_all", "rest_s"), [(False, 0.05), (True, 0.2)])
def test_a_start_costs_a_bounded_part(of_all: bool, rest_s: float) -> None:
    made = drained(Pace(of_all))
    made.cost(0.01)
    assert made.due_s(0.0) == pytest.approx(1000.0 + rest_s)
    made.cost(1.0)
    assert made.due_s(0.0) == 1000.25  # the buffers fill meanwhile


@pytest.mark.parametrize(("is_quiet", "after_s"), [(False, 1.0), (True, 10.0)])
def test_looks_come_more_seldom_where_nobody_looks(is_quiet: bool, after_s: float, now_s: list[float]) -> None:
    made = Pace(of_all=True, part_s=60.0, is_quiet=is_quiet)
    assert made.looks_due()
    made.looked(now_s[0])
    now_s[0] += after_s - 0.01
    assert not made.looks_due()
    now_s[0] += 0.02
    assert made.looks_due()


def test_the_last_totals_are_of_the_end(now_s: list[float]) -> None:
    made = Pace(of_all=False)
    assert made.totals_due()
    made.totals_read()
    assert not made.totals_due()
    now_s[0] += 2.0
    assert made.totals_due()
    made.no_more_totals()
    assert not made.totals_due()


@pytest.mark.parametrize(("part_s", "is_quiet", "first_s"), [(10.0, False, 0.25), (10.0, True, 5.0), (0.0, False, 5.0)])
def test_who_waits_for_a_part_sees_it_soon(part_s: float, is_quiet: bool, first_s: float, now_s: list[float]) -> None:
    made = Pace(of_all=False, part_s=part_s, is_quiet=is_quiet)
    made.totals_read()
    assert made.wake_s == first_s
    now_s[0] += 0.25
    assert made.wake_s == 5.0
