"""Second looks: a small run of tests that look, as pytest reports it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_share(number, look):
    def judge(times):
        print(f"with {{times}} times the data")
        assert times >= {times}, f"{{times}} of {{number}}"
    look(judge)
"""
both_ways = pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "xdist"])


def run_of(folder: Path, count: int, times: int, *options: str) -> tuple[int, list[str]]:
    """(exit status, lines) of so many tests that hold from so many times the data on."""
    (folder / "test_inner.py").write_text(TESTS.format(count=count, times=times))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "tests.looks", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    done = subprocess.run(
        [*command, *options, str(folder)],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.returncode, done.stdout.splitlines()


def looks_in(lines: list[str]) -> set[str]:
    return {line for line in lines if line.startswith("second look: ")}


@both_ways
def test_what_holds_is_looked_at_once(options: tuple[str, ...], tmp_path: Path) -> None:
    status, lines = run_of(tmp_path, 6, 1, *options)
    assert status == 0 and not looks_in(lines)


@both_ways
@pytest.mark.parametrize("times", [2, 3])
def test_a_second_look_that_holds_is_told(times: int, options: tuple[str, ...], tmp_path: Path) -> None:
    status, lines = run_of(tmp_path, 4, times, *options)
    assert status == 0
    assert looks_in(lines) == {f"second look: test_inner.py::test_share[{n}]: 1 of {n}" for n in range(4)}


@both_ways
def test_a_second_look_that_does_not_hold_fails(options: tuple[str, ...], tmp_path: Path) -> None:
    """There is no third one."""
    status, lines = run_of(tmp_path, 1, 4, *options)
    assert status == 1
    assert [line for line in lines if line.startswith("with ")] == ["with 1 times the data", "with 3 times the data"]
    assert looks_in(lines) == {"second look: test_inner.py::test_share[0]: 1 of 0"}


@both_ways
def test_five_second_looks_that_hold_fail_the_run(options: tuple[str, ...], tmp_path: Path) -> None:
    status, lines = run_of(tmp_path, 5, 3, *options)
    assert status == 1 and len(looks_in(lines)) == 5
    assert any(re.search(r"\b5 passed\b", line) for line in lines) and not any("failed" in line for line in lines)
    assert "5 second looks: more than 4 are no chance" in lines
