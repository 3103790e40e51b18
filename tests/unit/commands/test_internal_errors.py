"""What an internal error says, and numpy's part that two threads must not import at once."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from bpfprof import cli


def _said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str) -> list[str]:
    made: dict[str, object] = {}
    exec(compile(textwrap.dedent(code), "/lib/made/broken\x1b.py", "exec"), made)
    monkeypatch.setattr(cli, "_run_command", made["command"])
    assert cli._run([], debug=False) == 1
    return capsys.readouterr().err.splitlines()


def test_it_names_the_innermost_functions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = _said(
        monkeypatch,
        capsys,
        """
        def inner():
            raise ValueError("7")
        def middle():
            inner()
        def outer():
            middle()
        def command(arguments):
            outer()
        """,
    )
    assert said[0] == "bpfprof: internal error: ValueError: 7"
    file = "made/broken\ufffd.py"
    assert said[1] == f"  at {file}:3 in inner, {file}:5 in middle, {file}:7 in outer"
    assert "report it" in said[2] and len(said) == 3


def test_of_an_endless_recursion_it_names_the_cycle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _said(
        monkeypatch,
        capsys,
        """
        def ping():
            pong()
        def pong():
            len([])
            ping()
        def command(arguments):
            ping()
        """,
    )
    begin, _, count = said[1].rpartition(", ")
    file = "made/broken\ufffd.py"
    cycle = f"{file}:3 in ping", f"{file}:6 in pong"
    assert begin in (f"  at {cycle[0]}, {cycle[1]}", f"  at {cycle[1]}, {cycle[0]}")
    assert int(count.removesuffix(" times")) > 100


_TWO_THREADS = """
import sys, threading, time, types
from bpfprof.commands.importing import import_numpy
import_numpy()
import numpy

class Slow(types.ModuleType):
    def __setattr__(self, name, value):
        if name == "ma":
            time.sleep(0.2)
        super().__setattr__(name, value)

def distinct():
    numpy.unique(numpy.array([1, 2]))

def distinct_too():
    while "numpy.ma" not in sys.modules or sys.modules["numpy.ma"].__spec__._initializing:
        time.sleep(0.001)
    distinct()

numpy.__class__ = Slow
threads = [threading.Thread(target=each) for each in (distinct, distinct_too)]
for each in threads:
    each.start()
"""


def test_two_threads_ask_numpy_for_distinct_values_first() -> None:
    done = subprocess.run([sys.executable, "-c", _TWO_THREADS], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
