"""The line that `record` has while it goes on: of the program, not of the tool."""

from __future__ import annotations

import io
import os

import pytest

from bpfprof.capture.session import Progress
from bpfprof.commands import recording
from bpfprof.commands.recording import LiveLine
from bpfprof.commands.terminal import CLEAR_LINE

RATE_HZ = 100


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Of 200 columns, of a machine with two CPUs, for which each look comes half a second after the one before."""
    made = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(recording.sys, "stderr", made)
    monkeypatch.setattr(recording.os, "get_terminal_size", lambda _fd: os.terminal_size((200, 24)))
    monkeypatch.setattr(recording.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(recording, "_LIVE_S", 0.0)
    return made


def at(seconds: float, samples: int) -> Progress:
    return Progress(seconds, samples, 12, 0, 0.03 * seconds)


def test_it_has_what_the_program_uses_lately_and_at_the_end_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """One CPU for two seconds, then two for two."""
    terminal = terminal_of(monkeypatch)
    line = LiveLine(True, RATE_HZ)
    for turn in range(1, 9):
        samples = 50 * turn if turn <= 4 else 200 + 100 * (turn - 4)
        line.update(at(turn / 2, samples))
    line.end(at(4, 600))
    *live, last = terminal.getvalue().split(CLEAR_LINE)[1:]
    assert live[0] == "0.5 s, 12 threads, 1.00 of 2 CPUs, 0 lost, own CPU 3.0%"
    used = [float(text.split(", ")[2].split()[0]) for text in live]
    assert used == [1, 1, 1, 1, 1.25, 1.5, 1.75, 2]
    assert last == "4.0 s, 12 threads, 1.50 of 2 CPUs, 0 lost, own CPU 3.0%\n"


def test_without_samples_it_says_nothing_of_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    line = LiveLine(True, 0)
    line.update(at(1, 0))
    line.clear()
    assert terminal.getvalue() == f"{CLEAR_LINE}1.0 s, 12 threads, 0 lost, own CPU 3.0%{CLEAR_LINE}"
