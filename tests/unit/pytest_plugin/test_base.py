"""What tests took, as a file, and what got slower."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bpfprof.errors import RecordingError
from bpfprof.pytest_plugin.base import Run, TestTime, compared, read_run, write_run
from bpfprof.query.compare.slices import SLICE_COUNT
from bpfprof.query.compare.stretches import StretchTime


def test_time(name: str, cpu_ms: float, wait_ms: float = 0, passed: bool = True) -> TestTime:
    """One whose time is the same in each of its slices."""
    slices = np.repeat([[cpu_ms], [wait_ms]], SLICE_COUNT, axis=1) * 1e6 / SLICE_COUNT
    cpu_ns, wait_ns = round(cpu_ms * 1e6), round(wait_ms * 1e6)
    return TestTime(name, StretchTime(cpu_ns + wait_ns, cpu_ns, 0, wait_ns, slices), passed)


test_time.__test__ = False  # type: ignore[attr-defined]


def run(*tests: TestTime) -> Run:
    return Run(tests, 2e6)


def test_a_file_holds_what_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(write_run(run(test_time("t.py::a[1]", 100, 50), test_time("t.py::b", 3, passed=False)), "1"))
    assert len(path.read_text().splitlines()) == 4  # a line a test
    found = read_run(path)
    assert [(test.name, test.passed, test.time.cpu_ns) for test in found.tests] == [
        ("t.py::a[1]", True, 100_000_000),
        ("t.py::b", False, 3_000_000),
    ]
    assert found.period_ns == 2e6
    assert found.tests[0].time.slices.sum() == pytest.approx(150e6, rel=1e-3)  # whole microseconds


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"bpfprof_tests": 2, "period_ns": 1, "tests": []}', "\0\xff"])
def test_what_is_no_base_is_said(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(RecordingError, match="no base of tests"):
        read_run(tmp_path / "a.json")


def test_slower_beyond_the_error_and_by_more_than_asked_for() -> None:
    before = run(test_time("cpu", 100), test_time("wait", 5, 200), test_time("same", 100), test_time("short", 1))
    after = run(test_time("cpu", 250), test_time("wait", 5, 500), test_time("same", 110), test_time("short", 9))
    found = compared([before], after, 20)
    assert [(name, what) for name, what, _ in found.slower] == [("wait", "waits"), ("cpu", "CPU")]
    assert (found.compared, found.short, found.new, found.absent) == (3, 1, 0, 0)
    assert not compared([before], after, 200).slower


def test_several_runs_tell_a_difference_that_one_does_not() -> None:
    before, after = [run(test_time("a", ms)) for ms in (100, 101, 99, 100, 100, 101)], run(test_time("a", 135))
    assert [name for name, _, _ in compared(before, after, 5).slower] == ["a"]
    assert not compared(before[:1], run(test_time("a", 120)), 5).slower


def test_only_tests_that_passed_are_compared() -> None:
    before = run(test_time("failed now", 100), test_time("failed then", 100, passed=False), test_time("gone", 100))
    after = run(test_time("failed now", 900, passed=False), test_time("failed then", 900), test_time("new", 900))
    found = compared([before], after, 20)
    assert not found.slower and (found.compared, found.new, found.absent) == (0, 2, 2)
