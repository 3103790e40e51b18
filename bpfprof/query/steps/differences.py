"""Steps of recordings before and after -> how long they took, and each of their phases, with standard errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpfprof.query.compare.differences import Change
from bpfprof.query.compare.noise import WAVE_COUNT, Mean, Spread, difference, mean
from bpfprof.query.compare.slices import SLICE_COUNT
from bpfprof.query.steps.phases import OTHER
from bpfprof.query.steps.steps import Floats, Steps

STEP_ROW = "step"
# What differs from run to run is in no single recording: twelve runs of one loop (tests/benchmarks/step_pairs.py) took
# 184 to 234 ms a step, standard deviation 9%, nearly all in one phase. Two degrees of freedom: of several
# recordings a side their own scatter says more.
_RUN_SPREAD = Spread(np.array([0.1]), 2)


def step_changes(before: Sequence[Steps], after: Sequence[Steps]) -> dict[str, Change]:
    """Seconds of a step, then of its phases, those with most time first; phases that neither side has are left out.

    Each side: of one or more recordings their steps, of which there is one at least.
    """
    names = dict.fromkeys(name for steps in (*before, *after) for name in steps.phases if name != OTHER)
    found = {STEP_ROW: _change([_durations(one) for one in before], [_durations(one) for one in after])}
    changes = {
        name: _change([_phase(one, name) for one in before], [_phase(one, name) for one in after]) for name in names
    }
    changes[OTHER] = _change([_phase(one, OTHER) for one in before], [_phase(one, OTHER) for one in after])
    ordered = sorted(changes.items(), key=lambda item: -item[1].before - item[1].after)
    return found | {name: each for name, each in ordered if each.before or each.after}


def _durations(steps: Steps) -> Floats:
    return steps.durations_ns.astype(np.float64)


def _phase(steps: Steps, name: str) -> Floats:
    return steps.phase_ns[:, steps.phases.index(name)] if name in steps.phases else np.zeros(len(steps))


def _change(before: Sequence[Floats], after: Sequence[Floats]) -> Change:
    sides = [_mean(side) for side in (before, after)]
    between = difference(*sides)
    values = (sides[0].value, sides[1].value, np.sqrt(between.variance))
    before_s, after_s, error_s = (float(each.flat[0]) / 1e9 for each in values)
    return Change(before_s, after_s, error_s, float(between.freedom.flat[0]))


def _mean(recordings: Sequence[Floats]) -> Mean:
    """Of the steps of all recordings of a side. Steps one after the other are alike, so groups of them are compared."""
    parts = [np.array_split(each, min(len(each), SLICE_COUNT)) for each in recordings]
    times = [np.array([[part.sum() for part in own]]) for own in parts]
    units = [np.array([float(len(part)) for part in own]) for own in parts]
    found = mean(times, units, np.zeros(1), _RUN_SPREAD)
    if min(len(own) for own in parts) > WAVE_COUNT:
        return found
    # Too few for waves: as of steps that have nothing to do with each other.
    every = np.concatenate(recordings)
    within = every.var(ddof=1) / len(every) if len(every) > 1 else float("inf")
    variance = np.maximum(found.variance, within + (_RUN_SPREAD.share * every.mean()) ** 2 / len(recordings))
    return Mean(found.value, variance, np.array([max(1.0, len(every) - 1.0)]))
