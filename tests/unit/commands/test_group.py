"""The command line as a whole: help, versions, and what is accepted without a word in help."""

from __future__ import annotations

import shlex
import sys

import click
import pytest

from bpfprof.commands.described import described_commands
from bpfprof.commands.group import COMMANDS, EXAMPLES, group
from bpfprof.commands.help import Command
from tests.unit.commands.command import run

NAMES = [name for commands in COMMANDS.values() for name in commands]


def command_of(name: str) -> Command:
    command = group.get_command(click.Context(group, info_name="bpfprof"), name)
    assert isinstance(command, Command)
    return command


def help_of(name: str) -> str:
    command = command_of(name)
    return command.get_help(click.Context(command, info_name=f"bpfprof {name}", help_option_names=["-h", "--help"]))


def test_help_of_bpfprof_has_each_command_with_a_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    for commands in COMMANDS.values():
        for name, summary in commands.items():
            assert f"  {name}" in shown and summary in shown
    assert "Exit codes:" in shown and EXAMPLES[0][1] in shown


def test_without_arguments_it_is_a_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "To record:" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_help_has_every_option_once_and_examples(name: str) -> None:
    command, shown = command_of(name), help_of(name)
    for option in command.params:
        if isinstance(option, click.Option):
            lines = [line for line in shown.splitlines() if line.startswith(f"  {option.opts[0]}")]
            lines = [line for line in lines if line.split()[0].rstrip(",") == option.opts[0]]
            assert len(lines) == (not option.hidden), option.opts
    assert 2 <= len(command.examples) <= 4
    assert shown.rstrip().endswith(command.examples[-1][1])


@pytest.mark.parametrize("name", ["record", "offcpu", "top", "report", "diff"])
def test_long_helps_are_in_groups(name: str) -> None:
    described = next(command for command in described_commands() if command.name == name)
    headings = [heading for heading, _ in described.sections]
    assert "What is shown" in headings and headings[-1] == "Other" and "Options" not in headings
    assert [option.names for option in described.sections[-1][1]] == [("-h", "--help")]


EVERY_EXAMPLE = [example for name in NAMES for example in command_of(name).examples] + list(EXAMPLES)


@pytest.mark.parametrize("line", [line for _, line in EVERY_EXAMPLE])
def test_examples_can_be_typed(line: str) -> None:
    words = shlex.split(line.split(" >")[0])
    words = words[words.index("bpfprof") + 1 :]
    command_of(words[0]).make_context(words[0], words[1:], obj=None)
    assert len(line) <= 78, "it is copied from a terminal of 80 columns"


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("record", ["--nonblocking", "-i", "--idle", "-t", "--threads"]),
        ("offcpu", ["--nonblocking", "-i", "-t", "--rate=99", "--mode=offcpu"]),
        ("top", ["--nonblocking", "-i", "--idle"]),
        ("report", ["-i", "--idle", "-t"]),
        ("diff", ["-F"]),
    ],
)
def test_what_is_accepted_for_habit_is_not_in_help(command: str, options: list[str]) -> None:
    shown = help_of(command)
    for option in options:
        command_of(command).make_context(command, [option, "x"] if command == "report" else [option])
    for option in ("--nonblocking", "--threads", "habit"):
        assert f" {option}" not in shown


def values_of(*words: str) -> dict[str, object]:
    return command_of(words[0]).make_context(words[0], list(words[1:])).params


def test_synonyms() -> None:
    assert values_of("record", "-n", "-p", "1")["native"] is True
    assert values_of("record", "--no-native", "-p", "1")["native"] is False
    for word, mode in (("wall", "both"), ("both", "both"), ("cpu", "cpu"), ("offcpu", "offcpu")):
        assert values_of("record", "--mode", word, "-p", "1")["mode"] == mode
    assert values_of("offcpu", "-n", "3")["limit"] == values_of("top", "-n", "3")["count"] == 3


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version_says_what_a_report_of_a_bug_needs(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(word) == 0
    bpfprof, python, bcc, linux = capsys.readouterr().out.splitlines()
    assert bpfprof.startswith("bpfprof ") and "." in bpfprof
    assert python.startswith("CPython 3.") and sys.executable in python
    assert bcc.startswith("BCC ") and linux.startswith("Linux ")


def test_version_without_bcc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert run("--version") == 0
    assert "BCC is missing: sudo apt-get install python3-bpfcc" in capsys.readouterr().out
