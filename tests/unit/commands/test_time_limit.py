"""A limit of time: what it ends, when it says where the recording is, and that nothing rings after it."""

from __future__ import annotations

import math
import signal
import time

import pytest

from bpfprof.commands.time_limit import OutOfTimeError, TimeLimit

SHORT_S, LONG_S = 0.01, 60.0


def begun(least_s: float, part: float, recorded_s: float = 1.0) -> TimeLimit:
    limit = TimeLimit(part, "it is there")
    limit.begin(least_s, recorded_s)
    return limit


def wait_for_end() -> None:
    """As work does that swallows failures."""
    deadline_s = time.monotonic() + LONG_S
    while time.monotonic() < deadline_s:
        try:
            time.sleep(SHORT_S)
        except Exception:
            continue
    raise AssertionError("nothing ended it")


def busy_without_signals(seconds: float) -> None:
    """As a machine that gives the program no CPU for so long."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        pass
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})


def test_it_ends_what_swallows_failures(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OutOfTimeError), begun(SHORT_S, 0.0):
        wait_for_end()
    assert capfd.readouterr().err == ""


def test_of_a_long_recording_it_says_where_that_is_before_it_ends(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OutOfTimeError), begun(SHORT_S, 0.05, recorded_s=100 * SHORT_S):
        wait_for_end()
    assert capfd.readouterr().err == "it is there\n"


def test_it_says_so_where_both_are_due_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OutOfTimeError), begun(SHORT_S, 1.0, recorded_s=2 * SHORT_S):
        busy_without_signals(4 * SHORT_S)
        wait_for_end()
    assert capfd.readouterr().err == "it is there\n"


def test_without_an_end_it_only_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    with begun(SHORT_S, math.inf):
        deadline_s, said = time.monotonic() + LONG_S, ""
        while not said and time.monotonic() < deadline_s:
            said = capfd.readouterr().err
    assert said == "it is there\n"


def test_what_is_done_in_time_is_left_alone() -> None:
    with begun(LONG_S, 0.0):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
