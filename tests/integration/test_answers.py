"""The verdict on programs that one known thing bounds, and on one that nothing does: what it is, and on which line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.integration.recorded import PROGRAMS, PYTHON, bpfprof, needs_root, program, running

pytestmark = needs_root
RECORD_S = 1.5


def line_of(kind: str) -> int:
    """The line that should be named."""
    lines = (PROGRAMS / "bounds.py").read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if re.search(rf"# here: {kind}$", line))
    return number


def answers(kind: str, folder: Path) -> tuple[str, dict[str, object]]:
    """(what `record` shows, what `report -f json` says)"""
    path = folder / "a.bpfprof"
    with running(PYTHON, program("bounds.py"), kind) as target:
        shown = bpfprof("record", "-p", target.pid, "-d", RECORD_S, "-o", path).stdout
    return shown, json.loads(bpfprof("report", path, "-f", "json").stdout)


@pytest.mark.parametrize("kind", ["python", "native", "gil", "lock", "sleep", "child"])
def test_the_verdict_names_the_cause_and_the_line(kind: str, tmp_path: Path) -> None:
    shown, found = answers(kind, tmp_path)
    verdict = found["verdict"]
    where = verdict["where"]
    # Where the machine is busy a thread is ready without a CPU for most of its time, and that is then the cause.
    assert verdict["bound"] in (kind, "ready"), verdict
    assert (Path(where["file"]).name, where["line"]) == ("bounds.py", line_of(kind)), verdict
    assert verdict["sentence"].split(":")[0] in " ".join(shown.split())
    assert len(shown.splitlines()) <= 24


def test_who_waits_for_a_thread_is_bound_by_what_it_does(tmp_path: Path) -> None:
    _, found = answers("joined", tmp_path)
    assert found["verdict"]["bound"] in ("native", "ready") and found["verdict"]["where"]["line"] == line_of("joined")


def test_a_healthy_idle_program_is_accused_of_nothing(tmp_path: Path) -> None:
    shown, found = answers("idle", tmp_path)
    assert found["verdict"]["bound"] == "idle" and found["verdict"]["where"] is None
    assert "Nothing stands out." in shown
