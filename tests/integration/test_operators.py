"""Operators of numpy by a program that knows the CPU time of each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.integration.recorded import bpfprof, needs_root, program, recording, running

pytestmark = needs_root
RECORD_S, RATE_HZ = 8, 199


def test_operators_of_numpy_have_the_time_that_they_took(tmp_path: Path) -> None:
    """By samples: of the 1,600 that there are the largest share, a third, is off by 5 points with a chance of 2e-5."""
    path = tmp_path / "x.bpfprof"
    with running(sys.executable, program("numpy_operators.py")) as target:
        with recording("-p", target.pid, "-d", RECORD_S, "-r", RATE_HZ, "-o", path) as recorder:
            target.tell("now")
            assert recorder.end(None).returncode == 0
        told = json.loads(target.end())
    rows = json.loads(bpfprof("report", path, "--by", "operator", "-f", "json").stdout)["rows"]
    found = {row["operator"]: row["cpu_self_s"] for row in rows}
    whole_s, told_s = sum(found.values()), sum(told.values())
    assert {name: found.get(name, 0.0) / whole_s for name in told} == pytest.approx(
        {name: spent / told_s for name, spent in told.items()}, abs=0.05
    )
    assert sum(found[name] for name in told) > 0.97 * whole_s
