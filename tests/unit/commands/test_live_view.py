"""The screen of `top` while nothing new comes: its clock goes on, it says when there is more, and -d is obeyed."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import termios
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bpfprof.capture.session import Progress
from bpfprof.capture.stop import StopRequest
from bpfprof.capture.watch import Watch
from bpfprof.commands import live_view, top
from bpfprof.commands.live_view import LiveOptions, LiveView
from bpfprof.commands.screen import Screen
from tests.unit.profile.test_live import grown, random_recording

_MOST_S = 30.0  # a busy machine takes its time
STOP = cast(StopRequest, SimpleNamespace(cuts=lambda work: work(), requested=False))


class Drawn:
    """A screen that keeps what is drawn."""

    is_gone = False

    def __init__(self) -> None:
        self.lines: list[str] = []

    def draw(self, lines: list[str], only_changed: bool = False) -> None:
        self.lines = lines


def session_of(part_s: float = 1.0) -> Any:
    return SimpleNamespace(pace=SimpleNamespace(part_s=part_s), progress=Progress())


def shown(screen: Any, session: Any, is_asked: bool = False) -> LiveView:
    """A view that has something to show, and gets no more."""
    view = LiveView(LiveOptions("x", True, 1.0, is_asked), STOP)
    view.begin(screen, session, grown(random_recording(0)))
    for _ in range(2):
        view.tick(Progress())
    return view


def test_the_clock_goes_on_while_a_view_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    monkeypatch.setenv("TERM", "xterm")
    views: list[LiveView] = []
    clocks: dict[str, None] = {}
    with os.fdopen(theirs, "w") as out, os.fdopen(os.dup(theirs)) as keys:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stdin", keys)
        with Screen(lambda _: None, lambda: views[0].draw() if views else None, lambda: 0.1) as screen:
            views.append(shown(screen, session_of()))
            end_s, said = time.monotonic() + _MOST_S, b""
            while len(clocks) < 3 and time.monotonic() < end_s:
                if select.select([ours], [], [], 0.1)[0]:
                    said += os.read(ours, 1 << 16)
                clocks = dict.fromkeys(re.findall(r" (\d\d:\d\d) ", said.decode(errors="replace")))
    os.close(ours)
    assert len(clocks) == 3 and sorted(clocks) == [*clocks]


def read(terminal: int) -> str:
    """What was written there."""
    said = b""
    while select.select([terminal], [], [], 0.1)[0]:
        said += os.read(terminal, 1 << 16)
    return said.decode()


def test_of_a_screen_that_stands_only_the_clock_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as out, os.fdopen(os.dup(theirs)) as keys:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stdin", keys)
        with Screen(lambda _: None, lambda: None, lambda: 60.0) as screen:
            view, said = shown(screen, session_of()), []
            for columns in (100, 100, 90):
                termios.tcsetwinsize(theirs, (24, columns))
                read(ours)
                view._data._start_s -= 3
                view.draw()
                said.append(read(ours))
            first, second, whole = said
            assert first.count("\x1b[K") == second.count("\x1b[K") == 1
            assert "bpfprof top" in second and len(first) < 200
            assert whole.count("\x1b[K") == 24
            os.write(ours, b"q")
    os.close(ours)


@pytest.mark.parametrize(("part_s", "said"), [(80.0, r"next in (?:[567]\d|80) s"), (1.0, "")])
def test_it_says_when_there_is_more(part_s: float, said: str) -> None:
    screen = Drawn()
    shown(screen, session_of(part_s), is_asked=True).draw()
    foot = screen.lines[-1]
    assert re.search(said, foot) if said else "next in" not in foot


@pytest.mark.parametrize(("is_asked", "part_s"), [(True, 1.0), (False, 5.0)])
def test_a_view_that_costs_much_comes_less_often_unless_it_was_asked_for(
    is_asked: bool, part_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_view, "_VIEW_PART", 1e-9)
    session = session_of()
    shown(Drawn(), session, is_asked)
    assert session.pace.part_s == part_s


@pytest.mark.parametrize(("rest_s", "part_s"), [(0.1, 5.0), (0.16, 0.07 / 0.009), (0.24, 15.0), (0.4, 15.0)])
def test_beside_what_bpfprof_takes_else_a_view_comes_so_seldom_that_it_is_not_too_much(
    rest_s: float, part_s: float
) -> None:
    view = shown(Drawn(), session_of())
    view._used.clear()
    view._used.extend([(0.0, 1.0, 1.0), (10.0, 1.0 + rest_s + 0.07, 1.0 + rest_s)])
    assert view._part_s(0.07) == pytest.approx(part_s)


@pytest.mark.parametrize(("asked", "every_s"), [(1.0, 1.0), (30.0, 30.0), (None, live_view.EVERY_S)])
def test_a_delay_that_is_given_is_asked_for(
    asked: float | None, every_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[LiveOptions] = []

    def noted(options: LiveOptions, _stop: StopRequest) -> LiveView:
        told.append(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(live_view, "LiveView", noted)
    watch = cast(Watch, SimpleNamespace(options=SimpleNamespace(pids=(7,))))
    with suppress(KeyboardInterrupt):
        top._run(watch, True, asked, None, STOP)
    assert told[0].every_s == every_s and told[0].is_asked is (asked is not None)
