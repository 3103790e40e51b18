"""vagrant/: its configuration is valid and has the rows of the matrix, and run.sh tells which of them failed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

VAGRANT = Path(__file__).resolve().parents[2] / "vagrant"
ROWS = [row["name"] for row in yaml.safe_load((VAGRANT / "matrix.yaml").read_text())["rows"]]

# Answers like vagrant does. The tests fail in the machine "second", and "third" does not start.
STAND_IN = """#!/bin/sh
echo "$*" >>"$(dirname "$0")/calls"
case "$*" in
status*) for row in first second third; do echo "1,$row,metadata,provider,libvirt"; done ;;
up*third) exit 1 ;;
ssh*second*guest.sh*) exit 1 ;;
ssh*tar*) echo report >/tmp/report.$$; tar -c -C /tmp --transform s/report.*/junit.xml/ report.$$; rm /tmp/report.$$ ;;
esac
"""


def vagrant(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("vagrant") is None:
        pytest.skip("no vagrant")
    own = {"VAGRANT_CWD": str(VAGRANT), "VAGRANT_HOME": str(folder), "VAGRANT_DOTFILE_PATH": str(folder / "state")}
    environment = {**os.environ, **own, "VAGRANT_CHECKPOINT_DISABLE": "1"}
    return subprocess.run(["vagrant", *arguments], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.second_tier
def test_the_vagrantfile_is_valid(tmp_path: Path) -> None:
    done = vagrant(tmp_path, "validate")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.second_tier
def test_a_machine_for_each_row(tmp_path: Path) -> None:
    lines = [line.split(",") for line in vagrant(tmp_path, "status", "--machine-readable").stdout.splitlines()]
    assert [line[1] for line in lines if line[2:4] == ["metadata", "provider"]] == ROWS
    assert {line[4] for line in lines if line[2:4] == ["metadata", "provider"]} == {"libvirt"}


@pytest.fixture
def run_sh(tmp_path: Path) -> Path:
    """A copy of run.sh whose vagrant is a stand-in."""
    (tmp_path / "vagrant").write_text(STAND_IN)
    (tmp_path / "vagrant").chmod(0o755)
    return Path(shutil.copy(VAGRANT / "run.sh", tmp_path))


def run(run_sh: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """How it ended, and how it called vagrant."""
    environment = {**os.environ, "PATH": f"{run_sh.parent}:{os.environ['PATH']}"}
    done = subprocess.run([run_sh, *arguments], capture_output=True, text=True, env=environment, check=False)
    calls = run_sh.with_name("calls")
    return done, calls.read_text().splitlines() if calls.exists() else []


def test_each_row_has_its_reports_and_its_line(run_sh: Path) -> None:
    done, calls = run(run_sh)
    assert done.returncode == 1
    outcomes = [line.split()[:2] for line in done.stdout.splitlines()[-3:]]
    assert outcomes == [["first", "passed"], ["second", "FAILED"], ["third", "FAILED"]]
    assert [call for call in calls if call.startswith("halt")] == ["halt first", "halt second", "halt third"]
    reports = sorted(str(path.relative_to(run_sh.parent)) for path in run_sh.parent.glob("reports/*/junit.xml"))
    assert reports == ["reports/first/junit.xml", "reports/second/junit.xml"]


def test_only_the_rows_that_are_named(run_sh: Path) -> None:
    done, calls = run(run_sh, "first")
    assert done.returncode == 0 and done.stdout.splitlines()[-1].split()[:2] == ["first", "passed"]
    assert not any("second" in call for call in calls)


def test_a_row_that_does_not_exist(run_sh: Path) -> None:
    done, calls = run(run_sh, "first", "fourth")
    assert done.returncode == 2 and "no row fourth" in done.stderr
    assert not any(call.startswith("up") for call in calls)


def test_the_usage_names_both_ways(run_sh: Path) -> None:
    done, calls = run(run_sh, "-h")
    assert done.returncode == 0 and "--qemu" in done.stdout and calls == []
