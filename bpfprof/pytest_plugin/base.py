"""What each test of a run took, as a file, and what got slower since: by the rules of `diff --fail-over`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.errors import RecordingError
from bpfprof.query.compare.differences import Change, differences
from bpfprof.query.compare.slices import SLICE_COUNT, STATES
from bpfprof.query.compare.stretches import StretchTime

VERSION = 1
LEAST_NS = 50_000_000  # what takes less, before and after, is not compared


@dataclass(frozen=True)
class TestTime:
    """A test of a run; bound, verdict: "" where none was made."""

    __test__ = False  # for pytest, which looks for classes of this name

    name: str
    time: StretchTime
    passed: bool
    bound: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Run:
    """period_ns: from sample to sample."""

    tests: tuple[TestTime, ...]
    period_ns: float


@dataclass(frozen=True)
class Comparison:
    """slower: (test, what of it, how), most first. absent: of the base, but not of this run; short: took too little."""

    slower: tuple[tuple[str, str, Change], ...]
    compared: int
    new: int
    absent: int
    short: int


def write_run(run: Run, bpfprof_version: str) -> str:
    """As a file; read_run() gives the same."""
    tests = [
        {
            "test": each.name,
            "passed": each.passed,
            "wall_s": each.time.wall_ns / 1e9,
            "cpu_s": each.time.cpu_ns / 1e9,
            "ready_s": each.time.ready_ns / 1e9,
            "wait_s": each.time.wait_ns / 1e9,
            "bound": each.bound,
            "verdict": each.verdict,
            "slices_us": np.rint(each.time.slices / 1000).astype(int).tolist(),
        }
        for each in run.tests
    ]
    head = {"bpfprof_tests": VERSION, "bpfprof_version": bpfprof_version, "period_ns": run.period_ns}
    # A line a test, so that a base that is kept in a repository has diffs.
    lines = ",\n".join(json.dumps(test) for test in tests)
    return f'{json.dumps(head)[:-1]}, "tests": [\n{lines}\n]}}\n'


def read_run(path: Path) -> Run:
    """Raises RecordingError for a file that is none, or cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["bpfprof_tests"] != VERSION:
            raise ValueError("of another version of bpfprof")
        return Run(tuple(map(_read_test, content["tests"])), float(content["period_ns"]))
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "pytest --bpfprof-output FILE.json writes one"
        raise RecordingError(f"{path} is no base of tests", hint) from error


def _read_test(row: dict[str, Any]) -> TestTime:
    slices = np.array(row["slices_us"], np.float64) * 1000
    if slices.shape != (len(STATES), SLICE_COUNT) or not np.isfinite(slices).all():
        raise ValueError("slices")
    wall_ns, cpu_ns, ready_ns, wait_ns = (
        round(float(row[f"{each}_s"]) * 1e9) for each in ("wall", "cpu", "ready", "wait")
    )
    return TestTime(str(row["test"]), StretchTime(wall_ns, cpu_ns, ready_ns, wait_ns, slices), bool(row["passed"]))


def compared(base: Sequence[Run], run: Run, percent: float) -> Comparison:
    """Tests that passed before and now, each by itself. Of one that ran more than once each is a run of it."""
    before, after = _by_name(base), _by_name([run])
    slower: list[tuple[str, str, Change]] = []
    both = [name for name in after if name in before]
    long = [name for name in both if _longest_ns([*before[name], *after[name]]) >= LEAST_NS]
    for name in long:
        was, now = ([each.time.as_slices(name, period) for each, period in side[name]] for side in (before, after))
        found = differences(was, now, is_per_run=True)
        for row, change in found.tested:
            if change.is_slower(percent):
                slower.append((name, "CPU" if change is row.cpu else "waits", change))
    slower.sort(key=lambda each: -each[2].difference)
    counts = len(long), len(after) - len(both), len(before.keys() - after.keys()), len(both) - len(long)
    return Comparison(tuple(slower), *counts)


def _by_name(runs: Sequence[Run]) -> dict[str, list[tuple[TestTime, float]]]:
    found: dict[str, list[tuple[TestTime, float]]] = {}
    for run in runs:
        for test in run.tests:
            if test.passed:
                found.setdefault(test.name, []).append((test, run.period_ns))
    return found


def _longest_ns(tests: Sequence[tuple[TestTime, float]]) -> int:
    return max(max(each.time.cpu_ns, each.time.wait_ns) for each, _ in tests)
