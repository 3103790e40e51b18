"""Steps before and after: what takes longer, with an error that says what may be by chance."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bpfprof.query.steps.differences import STEP_ROW, step_changes
from bpfprof.query.steps.steps import LOOP, Steps
from bpfprof.render.diff_steps import render_step_json, render_step_table

MS = 1_000_000
PHASES = ("data wait", "forward", "backward", "log", "other")
USUAL_MS = (10.0, 40.0, 60.0, 0.0, 5.0)


def steps(seed: int, count: int = 200, **longer_ms: float) -> Steps:
    """Whose phases differ by 10% from step to step."""
    means = np.array([usual + longer_ms.get(name.replace(" ", "_"), 0.0) for name, usual in zip(PHASES, USUAL_MS)])
    phase_ns = means * np.random.default_rng(seed).normal(1, 0.1, (count, len(PHASES))) * MS
    edges = np.append(0, np.cumsum(np.rint(phase_ns.sum(axis=1)).astype(np.int64)))
    return Steps(0, LOOP, None, edges[:-1], edges[1:], PHASES, phase_ns)


def test_the_phase_that_takes_longer_is_found() -> None:
    changes = step_changes([steps(1)], [steps(2, backward=12.0)])
    step, backward = changes.pop(STEP_ROW), changes["backward"]
    # The mean of a side is off by 0.5 ms: 10% of 40 and 60 ms, of 200 steps. Five times that.
    assert step.difference * 1e3 == pytest.approx(12, abs=3) and backward.difference * 1e3 == pytest.approx(12, abs=3)
    assert step.difference > 2 * step.error and backward.difference > 2 * backward.error
    assert not any(abs(each.difference) > 3 * each.error for name, each in changes.items() if name != "backward")
    assert [*changes] == ["backward", "forward", "data wait", "other"]
    assert sum(each.after for each in changes.values()) == pytest.approx(step.after, rel=1e-6)
    told = json.loads(render_step_json({STEP_ROW: step, **changes}, ([steps(1)], [steps(2)]), []))
    assert "longer than before" in told["verdict"]["sentence"]
    (row,) = [row for row in told["rows"] if row.get("phase") == "backward"]
    assert row["difference_s"] == pytest.approx(backward.difference) and row["error_s"] == pytest.approx(backward.error)
    table = render_step_table({STEP_ROW: step, **changes}, ([steps(1)], [steps(2)]), [])
    assert "of 200 steps before and 200 steps after, with standard errors" in table


def test_steps_that_are_alike_differ_by_chance_alone() -> None:
    """Beyond twice the error in some hundredths of such pairs, as what differs from run to run is in the error, too."""
    found = 0
    for seed in range(200):
        step = step_changes([steps(2 * seed)], [steps(2 * seed + 1)])[STEP_ROW]
        found += abs(step.difference) > 2 * step.error
    assert found <= 10


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_steps_tell_large_differences_alone(count: int) -> None:
    step = step_changes([steps(1, count)], [steps(2, count, forward=3.0)])[STEP_ROW]
    assert abs(step.difference) <= 2 * step.error


def test_several_recordings_tell_smaller_differences() -> None:
    one = step_changes([steps(1)], [steps(2)])[STEP_ROW]
    many = step_changes([steps(seed) for seed in range(8)], [steps(seed) for seed in range(8, 16)])[STEP_ROW]
    assert many.error < 0.6 * one.error


def test_a_phase_that_is_new_is_there() -> None:
    changes = step_changes([steps(1)], [steps(2, log=4.0)])
    assert changes["log"].before == 0 < 2 * changes["log"].error < changes["log"].difference
