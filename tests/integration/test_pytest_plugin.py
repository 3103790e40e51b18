"""`pytest --bpfprof`: the verdict of each test, and tests that got slower, of a suite whose answers are known; a suite
of a package of PyPI."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import packages
from tests.integration.recorded import NOBODY, Done, needs_root, program

pytestmark = needs_root

KNOWN = program("known_tests.py")
# A test that wants a CPU may mostly be ready for one, where others want it, too.
BOUND = {"test_burns": {"python", "native", "ready"}, "test_sleeps": {"sleep"}, "test_waits_for_a_lock": {"lock"}}
PLACE = {
    "test_burns": r"burn \(known_tests\.py:1[7-9]\)",
    "test_sleeps": r"test_sleeps \(known_tests\.py:27\)",
    "test_waits_for_a_lock": r"taken in test_waits_for_a_lock \(known_tests\.py:41\)",
}
LATE_FOR_LOCK_S = 0.2  # it has to get the GIL and a CPU first, and the time until then may be counted as a wait before
SHORT_S = 0.05
LATE_S = 3  # so late for its own end is no thread


def ran(*arguments: str | Path, slower: float = 1, prefix: tuple[str, ...] = ()) -> Done:
    """pytest with these arguments, to its end."""
    options = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir=/", "-q"]
    command = [*prefix, sys.executable, "-m", "pytest", *options, *map(str, arguments)]
    environment = {**os.environ, "SLOWER": str(slower), "COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    return {row["test"].rpartition("::")[2]: row for row in json.loads(path.read_text())["tests"]}


def assert_known(rows: dict[str, dict[str, Any]]) -> None:
    for name, bounds in BOUND.items():
        row = rows[name]
        is_crowded = row["ready_s"] > 0.2 * row["wall_s"]  # then it is short of CPUs, whatever it does
        assert row["bound"] in (bounds | {"ready", "mixed"} if is_crowded else bounds), row
        assert is_crowded or re.search(PLACE[name], row["verdict"]), row
        assert row["wall_s"] == pytest.approx(row["cpu_s"] + row["ready_s"] + row["wait_s"], rel=0.05, abs=0.02)
    assert 0.29 < rows["test_burns"]["cpu_s"] < 0.29 + LATE_S
    for name in ("test_sleeps", "test_waits_for_a_lock"):
        row = rows[name]
        # It waits for less by what it was late for the lock itself.
        assert 0.29 < row["wall_s"] < 0.29 + LATE_S and row["wait_s"] > 0.29 - row["ready_s"] - LATE_FOR_LOCK_S, row


def test_each_test_has_its_verdict_and_what_got_slower_is_told(tmp_path: Path) -> None:
    base, later = tmp_path / "base.json", tmp_path / "later.json"
    done = ran(KNOWN, "--bpfprof-output", base)
    assert done.returncode == 1 and "1 failed, 4 passed" in done.stdout, done.stdout + done.stderr
    rows = rows_of(base)
    assert_known(rows)
    assert {name for name, row in rows.items() if not row["passed"]} == {"test_fails"}
    short = rows["test_is_short"]
    assert short["verdict"] == "Too short to say." or short["wall_s"] > SHORT_S, short  # it may have lost its CPU
    assert re.search(r"quality: .* wall time accounted for", done.stdout)
    for name, row in rows.items():
        assert re.search(rf"::{name} +{row['wall_s']:.3f} +{row['cpu_s']:.3f}", done.stdout), done.stdout

    more = "-k", "not fails", "--bpfprof-base", base, "--bpfprof-fail-over"
    done = ran(KNOWN, *more, "50", "--bpfprof-output", later, "--bpfprof-top", "1", slower=4)
    assert done.returncode == 6, done.stdout + done.stderr
    found = set(re.findall(r"::(\w+) +(CPU|waits) +\d", done.stdout))
    assert found >= {("test_burns", "CPU"), ("test_sleeps", "waits"), ("test_waits_for_a_lock", "waits")}, done.stdout
    assert "and 3 more" in done.stdout and len(rows_of(later)) == 4


def test_workers_of_xdist_are_told_apart(tmp_path: Path) -> None:
    output = tmp_path / "a.json"
    done = ran(KNOWN, "-n", "2", "--bpfprof-output", output)
    assert "1 failed, 4 passed" in done.stdout, done.stdout + done.stderr
    assert_known(rows_of(output))


def test_without_privilege_or_with_options_that_are_none_no_test_runs(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    as_nobody = "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"
    for arguments, prefix, words in (
        (["--bpfprof"], as_nobody, "recording needs root"),
        (["--bpfprof-fail-over", "10"], (), "--bpfprof-base FILE.json"),
        (["--bpfprof-base", tmp_path / "x.json"], (), "no base of tests"),
        (["--bpfprof-output", "x.png"], (), "does not tell what to write"),
    ):
        done = ran(KNOWN, *arguments, prefix=prefix)
        assert done.returncode == 4 and words in done.stderr and "passed" not in done.stdout, done.stderr
        assert "Traceback" not in done.stderr + done.stdout


def test_without_its_options_nothing_of_it_is_imported() -> None:
    code = "import pytest, sys; pytest.main(['--co', '-q', *sys.argv[1:]]); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, KNOWN], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name for name in done.stdout.split() if name.partition(".")[0] in ("bpfprof", "numpy", "click", "bcc")}
    assert loaded == {"bpfprof", "bpfprof.pytest_plugin"}


def test_a_suite_of_a_package(tmp_path: Path) -> None:
    suite = packages.source("more-itertools==10.5.0")
    output = tmp_path / "a.html"
    done = ran(f"{suite}/tests/test_recipes.py", "--bpfprof-output", output, "--bpfprof-top", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 100 and f"and {int(passed[1]) - 3} more" in done.stdout
    assert re.search(r"(100\.00|99\.\d\d)% of .* wall time accounted for", done.stdout)
    assert re.search(r"recipes\.py:\d+\)", done.stdout), done.stdout
    assert output.read_text().startswith("<!doctype html>")
