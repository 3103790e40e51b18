"""Steps before and after: what takes longer, with an error that says what may be by chance."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bpfprof.query.steps.differences import STEP_ROW, step_changes
from bpfprof.query.steps.steps import LOOP, Steps
from bpfprof.render.diff_steps import render_step_json, render_step_table, sentence

MS = 1_000_000
PHASES = ("data wait", "forward", "backward", "log", "other")
USUAL_MS = (10.0, 40.0, 60.0, 0.0, 5.0)


def steps(seed: int, count: int = 200, **longer_ms: float) -> Steps:
    """Whose phases differ by 10% from step to step."""
    means = np.array([usual + longer_ms.get(name.replace(" ", "_"), 0.0) for name, usual in zip(PHASES, USUAL_MS)])
    phase_ns = means * np.random.default_rng(seed).normal(1, 0.1, (count, len(PHASES))) * MS
    edges = np.append(0, np.cumsum(np.rint(phase_ns.sum(axis=1)).astype(np.int64)))
    return Steps(0, LOOP, None, edges[:-1], edges[1:], PHASES, phase_ns)


def sped(these: Steps, times: float) -> Steps:
    """The same on a machine on which they take so many times as long."""
    edges = np.rint(np.append(these.begin_ns, these.end_ns[-1:]) * times).astype(np.int64)
    return replace(these, begin_ns=edges[:-1], end_ns=edges[1:], phase_ns=these.phase_ns * times)


def test_the_phase_that_takes_longer_is_found() -> None:
    changes = step_changes([steps(1)], [steps(2, backward=50.0)])
    step, backward = changes.pop(STEP_ROW), changes["backward"]
    # The mean of a side is off by 0.5 to 0.9 ms: 10% of 40 and 60 or 110 ms, of 200 steps. Four times that.
    assert step.difference * 1e3 == pytest.approx(50, abs=4) and backward.difference * 1e3 == pytest.approx(50, abs=4)
    assert step.difference > 2 * step.error and backward.difference > 2 * backward.error
    assert not any(abs(each.difference) > 3 * each.error for name, each in changes.items() if name != "backward")
    assert [*changes] == ["backward", "forward", "data wait", "other"]
    assert sum(each.after for each in changes.values()) == pytest.approx(step.after, rel=1e-6)
    told = json.loads(render_step_json({STEP_ROW: step, **changes}, ([steps(1)], [steps(2)]), []))
    assert "longer than before" in told["verdict"]["sentence"]
    rates = told["rows"][0]["after_per_s"], told["rows"][0]["before_per_s"]
    assert rates == pytest.approx((1 / step.after, 1 / step.before), rel=1e-5)
    assert f"{rates[0]:.3g} steps a second, {rates[1]:.3g} before" in told["verdict"]["sentence"]
    assert told["verdict"]["sentence"].endswith("nearly all of it is more backward")
    (row,) = [row for row in told["rows"] if row.get("phase") == "backward"]
    assert row["difference_s"] == pytest.approx(backward.difference) and row["error_s"] == pytest.approx(backward.error)
    table = render_step_table({STEP_ROW: step, **changes}, ([steps(1)], [steps(2)]), [])
    assert "of 200 steps before and 200 steps after, with standard errors" in table


def test_steps_that_are_alike_differ_by_chance_alone() -> None:
    """Beyond twice the error in some hundredths of such pairs: of 200 runs each of which has a speed of its own."""
    found, speeds = 0, np.random.default_rng(1).normal(1, 0.09, 400)
    for seed in range(200):
        sides = [[sped(steps(place), speeds[place])] for place in (2 * seed, 2 * seed + 1)]
        step = step_changes(*sides)[STEP_ROW]
        found += abs(step.difference) > 2 * step.error
        assert "Several recordings a side" in sentence({STEP_ROW: step}, True) or abs(step.difference) > 2 * step.error
    assert found <= 14  # 3% are expected, six; that it is more than 14 has a probability of 0.001


@pytest.mark.parametrize("faster", [0.8, 0.7])
def test_several_recordings_a_side_tell_what_one_does_not(faster: float) -> None:
    speeds = np.random.default_rng(2).normal(1, 0.04, 8)
    sides = [
        [sped(steps(place), speeds[place] * (1, faster)[place // 4]) for place in own]
        for own in (range(4), range(4, 8))
    ]
    step = step_changes(*sides)[STEP_ROW]
    assert step.difference < -2 * step.error
    one = step_changes(sides[0][:1], sides[1][:1])[STEP_ROW]
    assert one.error > 2 * step.error


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
