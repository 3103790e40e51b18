"""Signals that ask for an end, and whose the output is.

They are raised in the thread itself: one for the whole process may be taken by another thread (DuckDB has some), and is
then seen a moment later.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable

import pytest

from bpfprof.capture.stop import StopRequest
from bpfprof.proc.caller import caller_ids


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_request_and_not_an_exception(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert not stop.requested
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert stop.requested
    assert signal.getsignal(number) == before


def test_after_its_end_ctrl_c_interrupts_again() -> None:
    """As a report is made, which may take long: of two impatient ones the second counts."""
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        stop.end()
        assert stop.requested
        signal.raise_signal(signal.SIGINT)


def test_handlers_come_back_after_an_error() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(RuntimeError), StopRequest():
        raise RuntimeError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(
    ("euid", "environment", "expected"),
    [
        (0, {"SUDO_UID": "1000", "SUDO_GID": "1001"}, (1000, 1001)),
        (0, {}, None),
        (0, {"SUDO_UID": "1000"}, None),
        (0, {"SUDO_UID": "-1", "SUDO_GID": "0"}, None),
        (0, {"SUDO_UID": "1000; rm", "SUDO_GID": "1"}, None),
        (0, {"SUDO_UID": "99999999999999", "SUDO_GID": "1"}, None),
        (0, {"SUDO_UID": "4294967295", "SUDO_GID": "1"}, None),
        (0, {"SUDO_UID": "\uff14\uff12", "SUDO_GID": "1"}, None),
        (1000, {"SUDO_UID": "1001", "SUDO_GID": "1001"}, None),
    ],
)
def test_the_user_behind_sudo(
    monkeypatch: pytest.MonkeyPatch, euid: int, environment: dict[str, str], expected: tuple[int, int] | None
) -> None:
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    assert caller_ids() == expected


def work_that_asks(ask: Callable[[StopRequest], None]) -> None:
    """Work that would not end, in which an end is asked for: it is left, and no more is begun."""

    def work() -> None:
        threading.Timer(0, ask, [stop]).start()
        for number in itertools.count():
            with contextlib.suppress(Exception):
                sorted(range(number % 1000))

    with StopRequest() as stop:
        stop.cuts(work)
        assert stop.requested
        stop.cuts(lambda: pytest.fail("it is not begun"))


def test_work_that_is_of_no_use_any_more_is_left_wherever_it_is() -> None:
    main = threading.get_ident()
    work_that_asks(lambda _: signal.pthread_kill(main, signal.SIGTERM))
    work_that_asks(lambda _: os.kill(os.getpid(), signal.SIGINT))
    work_that_asks(StopRequest.request)


def test_work_that_ends_is_not_left_and_signals_wait_again_after_it() -> None:
    done = []
    with StopRequest() as stop:
        stop.cuts(lambda: done.append(1))
        signal.raise_signal(signal.SIGINT)  # handled here, it would raise nothing either, but come too early
        assert signal.SIGINT in signal.sigpending()
        assert stop.requested and done == [1]
    with pytest.raises(RuntimeError), StopRequest() as stop:
        stop.cuts(raises)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def raises() -> None:
    raise RuntimeError
