"""`bpfprof diff` of a program and of one of its functions made slower, as it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.recorded import (
    AS_NOBODY,
    BPFPROF,
    PYTHON,
    bpfprof,
    completed,
    let_run,
    needs_root,
    open_folder,
    program,
    recording,
    running,
    skip_unless_nobody_can_run,
)

pytestmark = needs_root  # to make the recordings
SLOWER_PERCENT = 100  # so that some seconds are enough
# Of CPU time: a share of 30% of 2,500 samples has an error of 0.9 points. Six of these are never passed.
CPU_S, POINTS = 2.5, 0.06


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("diff")
    paths = folder / "before.bpfprof", folder / "after.bpfprof"
    for path, percent in zip(paths, (0, SLOWER_PERCENT)):
        with (
            running(PYTHON, program("one_slower.py"), "1000", str(percent)) as target,
            recording("-p", target.pid, "-r", "999", "-o", path) as recorder,
        ):
            let_run(target.pid, CPU_S)
            assert recorder.end().returncode == 0
    return paths


def compared(*arguments: str | Path, check: int = 0) -> dict[str, Any]:
    found = json.loads(bpfprof("diff", *arguments, "-f", "json", check=check).stdout)
    assert isinstance(found, dict)
    return found


def test_the_slower_function_is_named(sides: tuple[Path, Path]) -> None:
    """f had 30% of the time, and has twice as much for each 70% of the others."""
    found = compared(*sides)
    row = next(row for row in found["rows"] if row["function"] == "f")
    assert found["verdict"]["sentence"].startswith("f (one_slower.py) got slower by ")
    assert row["cpu"]["is_beyond_noise"] and row["file"].endswith("/one_slower.py")
    assert row["before_s"] == pytest.approx(0.3, abs=POINTS) and row["after_s"] == pytest.approx(0.6 / 1.3, abs=POINTS)
    assert 0 < row["error_s"] < row["difference_s"] / 3
    wall_s = json.loads(bpfprof("report", sides[0], "-f", "json").stdout)["totals"]["wall_s"]
    assert found["normalised"]["before_work_s"] <= 0.55 * wall_s, "the thread that waits for the end is left out"


def test_exit_codes_for_a_pipeline(sides: tuple[Path, Path]) -> None:
    before, after = sides
    told = bpfprof("diff", before, after, "--fail-over", "20", check=6).stderr
    assert "slower by more than 20%, most of all f by " in told
    bpfprof("diff", after, before, "--fail-over", "20", "--function", "^f$")
    bpfprof("diff", before, before, "--fail-over", "0")


def test_an_ordinary_user_reads_the_table(sides: tuple[Path, Path]) -> None:
    skip_unless_nobody_can_run()
    with open_folder() as folder:
        copies = [folder / path.name for path in sides]
        for path, copy in zip(sides, copies):
            copy.write_bytes(path.read_bytes())
            copy.chmod(0o644)
        done = completed([*BPFPROF, "diff", *map(str, copies)], 0, **AS_NOBODY)
    assert done.stderr == "" and "*" in done.stdout and "\x1b" not in done.stdout
