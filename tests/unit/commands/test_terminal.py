"""What a terminal is asked: its size, and whether it takes colours; a pipe takes neither."""

from __future__ import annotations

import io
import os
import pty
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest

from bpfprof.commands import record
from bpfprof.commands.plan import Plan
from bpfprof.commands.terminal import for_terminal
from bpfprof.query.tables.choices import ROW_GROUPINGS
from bpfprof.render.formats import RenderOptions, find_format
from tests.unit.commands.command import run, written
from tests.unit.recording.hand_made import small
from tests.unit.render.profiles import MS, ON_CPU, ProfileBuilder, python


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """One of 33 rows of 91 columns."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda _fd: os.terminal_size((91, 33)))
    with os.fdopen(theirs, "w") as stream:
        yield stream
    os.close(ours)


def test_a_terminal_has_a_size_and_colours(terminal: TextIO) -> None:
    look = for_terminal(RenderOptions(), terminal, used_rows=3)
    assert (look.columns, look.rows, look.has_color) == (91, 29, True)  # one row is the prompt's


def test_record_leaves_room_for_what_follows_its_summary(terminal: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says at the end, where the file is, what is next: the title stays, with the prompt."""
    plans: list[Plan] = []
    monkeypatch.setattr(record, "carry_out", lambda plan: plans.append(plan) or 0)
    assert run("record", "-p", str(os.getpid())) == 0
    monkeypatch.setattr(sys, "stdout", terminal)
    made = ProfileBuilder()
    thread = made.thread(1)
    for number in range(40):
        made.spend(thread, ON_CPU, 20 * MS, [python(f"step_{number}")])
    text = plans[0].render(made.build(), None)
    assert isinstance(text, str) and len(text.splitlines()) == 33 - 1 - 3


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_refused(name: str, value: str, terminal: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert not for_terminal(RenderOptions(), terminal).has_color


def test_a_terminal_that_was_closed_has_some_size(terminal: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_fd: int) -> os.terminal_size:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "get_terminal_size", gone)
    assert for_terminal(RenderOptions(), terminal).columns == 100


def test_a_pipe_has_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    look = for_terminal(RenderOptions(), io.StringIO())
    assert (look.columns, look.rows, look.has_color) == (100, 24, False)
    monkeypatch.setenv("COLUMNS", "72")
    assert for_terminal(RenderOptions(), io.StringIO()).columns == 72


def test_details_are_the_tables(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(small(), tmp_path)
    shown = {}
    for options in ((), ("--details",), ("-f", "table"), ("--check",), ("-f", "summary")):
        run("report", path, *options)
        shown[options] = capsys.readouterr().out
    assert shown[("--details",)] == shown[("-f", "table")] == shown[("--check",)] != shown[()]
    assert "off-CPU by reason" in shown[("--details",)] and "Too little to say" in shown[()]


@pytest.mark.parametrize(
    "format_name", ["flamegraph", "html", "speedscope", "chrome", "gecko", "pprof", "pstats", "parquet"]
)
def test_a_file_for_another_program_never_goes_to_a_terminal(
    format_name: str, tmp_path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = written(small(), tmp_path), ("-f", format_name)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    commands = [("report", path, *asked), ("report", path, *asked, "-o", "-"), ("offcpu", path, *asked)]
    commands += [("diff", path, path, *asked)] * (format_name in ("flamegraph", "html"))
    commands += [("compare", path, *asked)] * (format_name == "html")
    for command in commands:
        assert run(*command) == 2, command
        said = capsys.readouterr()
        suffix = find_format(format_name).suffixes[0]
        assert not said.out and "not for a terminal" in said.err and f"--output FILE{suffix}" in said.err
    assert run("report", path, *asked, "-o", tmp_path / "a") == 0
    assert run("report", path, "-f", "json") == run("report", path, "-f", "collapsed") == 0


def test_rows_are_by_what_was_asked(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(small(), tmp_path)
    assert run("report", path, "-f", "json", "--by", "thread") == 0
    assert '"thread": "main (100)"' in capsys.readouterr().out
    for by in ROW_GROUPINGS:
        assert run("report", path, "--by", by) == 0
        shown = capsys.readouterr().out
        assert f" by {by}" in shown
    assert run("report", path, "--by", "thread", "-n", "1") == 0
    assert "main (100)" in (shown := capsys.readouterr().out) and "and 1 more (--limit)" in shown
