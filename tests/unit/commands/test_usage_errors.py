"""Wrong uses: one form of answer, a sentence and a line of what helps, and exit code 2."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.unit.commands.command import run

WRONG = [
    # words typed, the sentence, the line below it
    ("recrod -p 1", "there is no command recrod; did you mean record?", "the commands are record, "),
    ("Report x", "there is no command Report; did you mean report?", ""),
    ("dmp 1", "there is no command dmp; did you mean dump?", ""),
    ("xyz", "there is no command xyz", "doctor"),
    ("5220", "say what to do with process 5220", "record --pid 5220, bpfprof top 5220 or bpfprof dump 5220"),
    ("a.bpfprof", "say what to do with a.bpfprof", "bpfprof report a.bpfprof"),
    ("--mode wall", "there is no option --mode", "bpfprof --help"),
    ("record --dration 5", "there is no option --dration; did you mean --duration?", "bpfprof record --help"),
    ("report x --thraed a", "there is no option --thraed; did you mean --thread?", "bpfprof report --help"),
    ("record --nonblock", "there is no option --nonblock", ""),
    ("record -z", "there is no option -z", ""),
    ("record", "say what to record: --pid PID, --all, --cgroup PATH, --container ID or -- COMMAND", "--pid 1234"),
    ("top", "say what to record: --pid PID, --all, --cgroup PATH or --container ID", "bpfprof top"),
    ("record -a -p 1", "--all already includes process 1", "leave one of them out"),
    ("record -a -p 1 -p 2", "--all already includes process 1 and process 2", ""),
    ("record -a -- sleep 1", "--all already includes sleep", "leave one of them out"),
    ("record -a --cgroup /a", "--all already includes /a", ""),
    ("record -p 1 -- sleep 1", "--pid and a command are two ways to say what to record", "leave one of them out"),
    ("top -p 1 --container a", "--pid and --container are two ways to say what to record", ""),
    ("record -p abc", "--pid wants the number of a process, not abc", "pgrep -af abc"),
    ("record -p 0", "--pid wants the number of a process, not 0", ""),
    ("record 0", "PID wants the number of a process, not 0", ""),
    ("dump abc", "PID wants the number of a process, not abc", "pgrep -af abc"),
    ("top -p 99999999999", "--pid wants the number of a process, not 99999999999", ""),
    ("record -p", "--pid wants a value: -p PID", "bpfprof record --help"),
    ("record --mode", "--mode wants a value: --mode MODE", ""),
    ("record --native=3", "--native takes no value", ""),
    ("record -d 0 -p 1", "--duration wants seconds, more than 0, not 0", ""),
    ("record -d -1 -p 1", "--duration wants seconds, more than 0, not -1", ""),
    ("record -d nan -p 1", "--duration wants seconds, more than 0, not nan", ""),
    ("record -d inf -p 1", "--duration wants seconds, more than 0, not inf", ""),
    ("record -d 5s -p 1", "--duration wants seconds, more than 0, not 5s", ""),
    ("record -r 0 -p 1", "--rate wants samples a second, from 1 to 20,000, not 0", ""),
    ("record -r fast -p 1", "--rate wants samples a second, from 1 to 20,000, not fast", ""),
    ("top -d 0 1", "--delay wants seconds, 0.2 to 3,600, not 0", ""),
    ("diff a b --fail-over -1", "--fail-over wants percent, 0 or more, not -1", ""),
    ("record --mode foo -p 1", "--mode wants one of both, wall, cpu, offcpu", ""),
    ("report x --by nothing", "--by wants one of function, ", ""),
    ("record -e foo -p 1", "--event: there is no event 'foo'", ""),
    ("report x --time 5", "--time: '5' is no window of time; one is written 2s..5s", ""),
    ("report x --reason foo", "--reason: 'foo' is no reason of a wait", ""),
    ("report", "RECORDING is missing", "bpfprof report [OPTIONS] RECORDING"),
    ("report a b", "bpfprof report does not take b", "bpfprof report [OPTIONS] RECORDING"),
    ("doctor abc", "bpfprof doctor does not take abc", "bpfprof doctor [OPTIONS]"),
    ("dump", "say which process", "bpfprof dump PID"),
    ("diff a", "give two recordings", "bpfprof diff BEFORE AFTER"),
    ("record -p 1 -o x.pdf", ".pdf is not a format of bpfprof", ".html gives a page"),
    ("report x.bpfprof --open", "--open is for a picture in a file", "-o FILE.html gives a page"),
    ("record -p 1 -o x.xyz", "the suffix of x.xyz does not tell the format", "give --format: collapsed"),
    ("record -p 1 -f xyz", "there is no format xyz", "the formats are collapsed"),
    ("record -p 1 -f markdow", "there is no format markdow; did you mean markdown?", "the formats are collapsed"),
    ("record -f collapsed -- true", "standard output belongs to the command that is launched", "--output FILE"),
    ("record -o - -- sleep 1", "standard output belongs to the command", "--output FILE"),
    ("offcpu x -p 1", "--pid is for recording, and x has been recorded", "leave it out"),
    ("completion tcsh", "SHELL wants one of bash, zsh, fish", ""),
    ("manual nothing", "COMMAND wants one of record, ", ""),
    ("manual --folder /nothing", "--folder wants a folder that is there", ""),
]


@pytest.mark.parametrize(("typed", "sentence", "hint"), WRONG, ids=[typed for typed, _, _ in WRONG])
def test_a_wrong_use(typed: str, sentence: str, hint: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bpfprof.commands.starting.starting", contextlib.nullcontext)  # nothing is compiled
    assert run(*typed.split()) == 2
    shown = capsys.readouterr()
    first, *rest = shown.err.splitlines()
    assert first.startswith(f"bpfprof: {sentence}") and shown.out == ""
    assert not first.endswith(".") and "Usage:" not in shown.err and "Error:" not in shown.err
    assert not rest or all(line.startswith("  ") for line in rest)
    assert hint in "\n".join(rest) if hint else True
    assert list(tmp_path.iterdir()) == []
