"""What births may cost: turns, and the rest after them."""

from __future__ import annotations

import pytest

from bpfprof.capture import turns
from bpfprof.capture.turns import Turns

TURN_S, COUNT = 0.003, 1000


class _Clock:
    """Of a thread that does nothing else."""

    def __init__(self) -> None:
        self.now_s, self.cpu_s, self.sleeps, self.cut_at = 1000.0, 0.0, 0, -1

    def pause(self, seconds: float) -> bool:
        self.now_s += seconds
        self.sleeps += 1
        return self.sleeps == self.cut_at

    def work(self, seconds: float) -> None:
        self.now_s += seconds
        self.cpu_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(turns.time, "monotonic", lambda: made.now_s)
    monkeypatch.setattr(turns.time, "thread_time", lambda: made.cpu_s)
    return made


def test_turns_one_after_the_other_have_their_share(clock: _Clock) -> None:
    made, begin_s = Turns(), clock.now_s
    for _ in range(COUNT):
        made.rest(float("inf"), clock.pause)
        with made.one():
            clock.work(TURN_S)
    assert clock.cpu_s / (clock.now_s - begin_s) == pytest.approx(0.2, rel=0.05)


def test_some_in_a_row_come_at_once(clock: _Clock) -> None:
    made = Turns()
    clock.now_s += 100
    for _ in range(30):
        made.rest(float("inf"), clock.pause)
        with made.one():
            clock.work(TURN_S)
    assert not clock.sleeps


def test_it_rests_no_longer_than_it_may(clock: _Clock) -> None:
    made = Turns()
    with made.one():
        clock.work(10)
    begin_s = clock.now_s
    made.rest(begin_s + 0.25, clock.pause)
    assert clock.now_s == pytest.approx(begin_s + 0.25)
    made.rest(begin_s, clock.pause)
    assert clock.sleeps == 1


def test_what_cannot_wait_ends_a_rest(clock: _Clock) -> None:
    """A signal, a key, or a buffer that fills; whether one does is looked at four times a second."""
    made = Turns(0.02)
    with made.one():
        clock.work(1)
    begin_s, clock.cut_at = clock.now_s, 3
    made.rest(float("inf"), clock.pause)
    assert clock.sleeps == 3 and clock.now_s == pytest.approx(begin_s + 0.75)
