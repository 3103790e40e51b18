"""Steps of training loops of five styles, beside what their own clocks say."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from bpfprof.recording.reader import read_recording
from tests import torch_root
from tests.integration.recorded import (
    ALL_INTERPRETERS,
    assert_told,
    bpfprof,
    let_run,
    needs_root,
    program,
    recording,
    running,
)
from tests.looks import Look

STYLES = ("plain", "trainer", "lightning", "generator", "native")
# A step has some 150 ms of CPU time, and each of its phases has two samples at the least: the ends of a step are known
# to within a sample, 2 ms, and those of 30 to far less than the bars of 2% and 3 points. Where the CPU is gone for long
# as one ends, the program and samples book that on different sides.
CPU_S, RATE_HZ = 4.5, 499
pytestmark = needs_root


class Told:
    """Steps that began and ended while it was recorded, by their own clock. lengths_s: of all, by when they began."""

    def __init__(self, path: Path, begin_ns: int, end_ns: int) -> None:
        rows = json.loads(path.read_text())
        pairs = [(begin, after, spent) for (begin, spent), (after, _) in zip(rows, rows[1:])]
        own = [pair for pair in pairs if begin_ns <= pair[0] and pair[1] <= end_ns]
        self.count, self.mean_s = len(own), sum(after - begin for begin, after, _ in own) / max(1, len(own)) / 1e9
        self.lengths_s = {(begin - begin_ns) / 1e9: (after - begin) / 1e9 for begin, after, _ in pairs}
        spent = [phases for _, _, phases in own]
        whole = sum(sum(phases.values()) for phases in spent)
        self.shares = {name: sum(it.get(name, 0) for it in spent) / whole for it in spent for name in it}


Recorded = tuple[Path, Told]


@pytest.fixture(scope="module", params=STYLES)
def recorded_for(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Recorded]:
    """By how many times CPU_S: a recording, and what the program told."""
    if request.param != "native" and shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap makes the root of torch")
    return cache(lambda times: _recorded(request.param, times * CPU_S, tmp_path_factory.mktemp(request.param)))


@pytest.fixture
def recorded(recorded_for: Callable[[int], Recorded]) -> Recorded:
    return recorded_for(1)


def _recorded(style: str, seconds: float, folder: Path) -> Recorded:
    path, told = folder / "steps.bpfprof", folder / "told.json"
    python = sys.executable if style == "native" else torch_root.python()
    with running(python, program("training_styles.py"), style, "--told", str(told)) as target:
        with recording("-p", target.pid, "-r", RATE_HZ, "-o", path) as recorder:
            let_run(target.pid, seconds)
            done = recorder.end()
            assert done.returncode == 0, done.stderr
        target.end()
    with path.open("rb") as file:
        read_back = read_recording(file)
    return path, Told(told, read_back.start["start_ns"], read_back.end["end_ns"])


def steps_of(path: Path, *options: str, pid: int | None = None) -> dict[str, Any]:
    """Of the one process that is recorded, or this one."""
    found = json.loads(bpfprof("report", path, "--by", "step", "-f", "json", *options).stdout)["loops"]
    (steps,) = (each for each in found if pid in (None, each["pid"]))
    return dict(steps)


def test_steps_are_those_of_the_programs_own_clock(recorded_for: Callable[[int], Recorded], look: Look) -> None:
    """Whether one at either end was whole is told within a sample."""

    def judge(times: int) -> None:
        path, told = recorded_for(times)
        steps = steps_of(path)
        assert told.count >= 5
        assert abs(steps["count"] - told.count) <= 1
        assert steps["mean_s"] == pytest.approx(sum(each["duration_s"] for each in steps["steps"]) / steps["count"])
        true_s = 0.0
        for each in steps["steps"]:
            true_s += told.lengths_s[min(told.lengths_s, key=lambda begin_s: abs(begin_s - each["begin_s"]))]
        assert sum(each["duration_s"] for each in steps["steps"]) == pytest.approx(true_s, rel=0.02)

    look(judge)


def test_phases_are_those_of_the_programs_own_clock(recorded_for: Callable[[int], Recorded], look: Look) -> None:
    def judge(times: int) -> None:
        path, told = recorded_for(times)
        found = {name: each["share"] for name, each in steps_of(path)["phases"].items()}
        for name in {*found, *told.shares}:
            assert abs(found.get(name, 0) - told.shares.get(name, 0)) <= 0.03, (name, found, told.shares)

    look(judge)


def test_the_table_has_the_answer(recorded: Recorded) -> None:
    path, _ = recorded
    count = steps_of(path)["count"]
    text = bpfprof("report", path, "--by", "step", "--batch", 64).stdout
    said = " ".join(text.split())  # a line may end anywhere
    assert f"steps: {count} steps, turns of the loop at " in said
    assert "samples a second" in said and "reader ratio" in said and "  backward\n" in text


def test_a_data_set_has_the_same_steps(recorded: Recorded, tmp_path: Path) -> None:
    path, _ = recorded
    bpfprof("export", path, "--to", tmp_path)
    (file,) = tmp_path.glob("*/*/*/steps.parquet")
    rows, steps = parquet.read_table(file).to_pylist(), steps_of(path)["steps"]
    assert [round(row["duration_ns"] / 1e9, 9) for row in rows] == [each["duration_s"] for each in steps]


def test_calls_that_are_asked_for_are_steps(recorded: Recorded) -> None:
    path, told = recorded
    said = " ".join(bpfprof("report", path, "--step", "no_such_function").stdout.split())
    assert "no calls of a function like no_such_function" in said
    assert_told(bpfprof("report", path, "--by", "step", "-f", "csv", check=None), 2, "json")
    assert_told(bpfprof("report", path, "--by", "function", "--step", "x", check=None), 2, "--by step")
    assert_told(bpfprof("report", path, "--phase", "forward", check=None), 2, "NAME=REGEX")
    own = steps_of(path, "--phase", "mine=backward")["phases"]
    assert own["mine"]["share"] > 0.9 * told.shares["backward"]
    if "native" in str(path):
        steps = steps_of(path, "--step", r"Engine\.backward")
        # Of the steps at either end, which are not whole, the call may be.
        assert steps["how"] == "calls" and -1 <= steps["count"] - told.count <= 2
        assert steps["mean_s"] == pytest.approx(told.shares["backward"] * told.mean_s, rel=0.1)


MARKING = [name for name in ALL_INTERPRETERS if name not in ("3.6", "3.7")]
TOGETHER = 4  # programs that are recorded at once


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int, Path]]:
    """Of the program on each interpreter: the recording that has it, its pid, and what it tells."""
    folder, found = tmp_path_factory.mktemp("marked"), {}
    for begin in range(0, len(MARKING), TOGETHER):
        path, targets = folder / f"{begin}.bpfprof", {}
        with contextlib.ExitStack() as stack:
            for name in MARKING[begin : begin + TOGETHER]:
                command = (ALL_INTERPRETERS[name], program("marked.py"), "--told", str(folder / name))
                targets[name] = stack.enter_context(running(*command))
                found[name] = path, targets[name].pid, folder / name
            pids = (word for target in targets.values() for word in ("-p", target.pid))
            bpfprof("record", *pids, "-d", 3, "-o", path)
            for target in targets.values():
                target.end()
    return found


@pytest.mark.parametrize("name", MARKING)
def test_marked_steps_are_exact(name: str, marked: dict[str, tuple[Path, int, Path]]) -> None:
    """Of some milliseconds each, which samples cannot tell. The program's own clock goes around the mark."""
    path, pid, told = marked[name]
    with path.open("rb") as file:
        start_ns = read_recording(file).start["start_ns"]
    steps = steps_of(path, pid=pid)
    assert steps["how"] == "marks" and steps["name"] == "step" and steps["count"] > 20
    pairs = [((begin - start_ns) / 1e9, (end - start_ns) / 1e9) for begin, end in json.loads(told.read_text())]
    first = next(place for place, (begin, end) in enumerate(pairs) if end > steps["steps"][0]["begin_s"])
    for (begin_s, end_s), step in zip(pairs[first:], steps["steps"]):
        assert begin_s <= step["begin_s"] and step["begin_s"] + step["duration_s"] <= end_s
    nested = steps_of(path, "--step", "^load$", pid=pid)
    assert nested["name"] == "load" and abs(nested["count"] - steps["count"]) <= 1


def test_steps_of_two_recordings_are_compared(recorded: Recorded) -> None:
    path, _ = recorded
    content = json.loads(bpfprof("diff", path, path, "--by", "step", "-f", "json").stdout)
    step, *phases = content["rows"]
    assert step["before_s"] == pytest.approx(steps_of(path)["mean_s"]) and step["difference_s"] == 0 < step["error_s"]
    assert sum(row["before_s"] for row in phases) == pytest.approx(step["before_s"])
    assert "no difference beyond twice the error" in content["verdict"]["sentence"]
