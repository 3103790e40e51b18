"""The verdict on programs that one known thing bounds, and on one that nothing does: what it is, and on which line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.recorded import PYTHON, bpfprof, needs_root, program
from tests.oracles.answers import lines_of
from tests.oracles.programs import record, started

pytestmark = needs_root
# Enough for a verdict (100 samples) where others take most of the CPUs.
RECORD_S, RATE_HZ = 1.5, 499
# Programs that are recorded together, which do not disturb each other: on two CPUs.
TOGETHER = (("sleep", "child", "idle"), ("python", "native"), ("gil",), ("lock",), ("joined",))
KINDS = [kind for kinds in TOGETHER for kind in kinds]
BOUND = {"joined": "native"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """For each program what `report -f json` says of it, and the screen beside as `screen`."""
    folder, found = tmp_path_factory.mktemp("answers"), {}
    for kinds in TOGETHER:
        path = folder / f"{kinds[0]}.bpfprof"
        with started({kind: ((PYTHON, program("bounds.py"), kind), {}) for kind in kinds}) as targets:
            record(path, (it.pid for it in targets.values()), RECORD_S, "-r", RATE_HZ)
        for kind, target in targets.items():
            only = ("--process", rf"\({target.pid}\)")
            found[kind] = json.loads(bpfprof("report", path, *only, "-f", "json").stdout)
            found[kind]["screen"] = bpfprof("report", path, *only).stdout
    yield found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "idle"])
def test_the_verdict_names_the_cause_and_the_line(kind: str, answers: dict[str, dict[str, Any]]) -> None:
    verdict = answers[kind]["verdict"]
    where = verdict["where"]
    # Where the machine is busy a thread is ready without a CPU for most of its time, and that is then the cause.
    assert verdict["bound"] in (BOUND.get(kind, kind), "ready"), verdict
    assert (Path(where["file"]).name, [where["line"]]) == ("bounds.py", lines_of("bounds.py", kind)), verdict
    assert verdict["sentence"] in " ".join(answers[kind]["screen"].split())


def test_a_healthy_idle_program_is_accused_of_nothing(answers: dict[str, dict[str, Any]]) -> None:
    verdict = answers["idle"]["verdict"]
    assert (verdict["bound"], verdict["where"]) == ("idle", None)
    assert "Nothing stands out." in answers["idle"]["screen"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_screen_has_24_rows(kind: str, answers: dict[str, dict[str, Any]]) -> None:
    assert len(answers[kind]["screen"].splitlines()) <= 24
