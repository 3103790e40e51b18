"""Times in slices of recordings -> their mean for each unit of work or in a run, and its standard error.

Samples of one thread come nearly regularly, and a program does the same again and again: neighbouring slices are not
independent. The error is therefore estimated from the slowest waves of a figure over the recording (equal-weighted
cosine estimator of the long-run variance: Lazarus, Lewis, Stock and Watson, "HAR Inference: Recommendations for
Practice", Journal of Business & Economic Statistics 36, 2018). It has Student's t with as many degrees of freedom as
there are waves. What repeats faster than these waves adds to the error no more than it adds to the mean.

What differs from run to run is in no single recording: a spread is taken for it. With several recordings a side their
own scatter moderates it, each by its degrees of freedom (G. K. Smyth, "Linear models and empirical Bayes methods",
Statistical Applications in Genetics and Molecular Biology 3, 2004).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass

Floats = npt.NDArray[np.float64]

WAVE_COUNT = 12
_MOST_FREEDOM = 200  # from there on Student's t is the normal distribution within 1%


@dataclass(frozen=True)
class Spread:
    """By how much of it a figure differs between runs of one program, and how many degrees of freedom that is worth."""

    share: Floats
    freedom: float


@dataclass(frozen=True)
class Mean:
    """Arrays of one shape. freedom: degrees of freedom of the variance."""

    value: Floats
    variance: Floats
    freedom: Floats


def mean(
    times: Sequence[Floats], units: Sequence[Floats], least_error: Floats, spread: Spread, is_per_run: bool = False
) -> Mean:
    """Of recordings of one side: time for each unit (of work), or in a run. Slices are the last axis.

    What no sample fell into may still have taken some time: the error of one recording is least_error at the least.
    """
    sums = [each.sum(axis=-1) for each in times]
    of_runs = [1.0 if is_per_run else max(1.0, float(each.sum())) for each in units]
    whole, count = sum(of_runs), len(times)
    value = np.sum(sums, axis=0) / whole
    within = np.zeros_like(value)
    for each, own_sum, own_units in zip(times, sums, units):
        rest = each - own_sum[..., None] * (own_units / max(1.0, own_units.sum()))
        within += np.maximum(_variance_of_sum(rest), least_error**2) / whole**2
    known = (spread.share * value) ** 2 / count
    variance = within + known
    parts = within**2 / (WAVE_COUNT * count) + known**2 / spread.freedom
    freedom = np.divide(variance**2, parts, out=np.ones_like(value), where=parts > 0)
    if count == 1:
        return Mean(value, variance, freedom)
    # The jackknife: of the means without one recording each.
    without = np.array([(value * whole - own_sum) / (whole - own) for own_sum, own in zip(sums, of_runs)])
    between = (count - 1) * np.var(without, axis=0)
    more = freedom + count - 1
    return Mean(value, (freedom * variance + (count - 1) * between) / more, more)


def mean_of_sums(count: int, x: Floats, xx: Floats, xw: Floats, w: float, ww: float) -> Mean:
    """Time for each second of work, of many recordings, of which only sums are known: of times x, of work w, and of
    their squares and products. Its error is that of a ratio (Cochran, Sampling Techniques, 6.4), by how much the
    recordings differ: two are the least.
    """
    value = x / w if w else np.zeros_like(x)
    scatter = np.maximum(xx - 2 * value * xw + value**2 * ww, 0)
    variance = scatter * (count / (count - 1)) / w**2 if w else scatter
    return Mean(value, variance, np.full_like(value, count - 1))


def _variance_of_sum(rest: Floats) -> Floats:
    """rest: what each slice has more than its share."""
    count = rest.shape[-1]
    waves = np.cos(np.pi * np.outer(np.arange(count) + 0.5, np.arange(1, WAVE_COUNT + 1)) / count)
    return np.asarray(2 * np.mean((rest @ waves) ** 2, axis=-1))


def difference(before: Mean, after: Mean) -> Mean:
    """Degrees of freedom by Welch and Satterthwaite; one where a variance is not known (infinite)."""
    variance = before.variance + after.variance
    parts = before.variance**2 / before.freedom + after.variance**2 / after.freedom
    freedom = np.divide(variance**2, parts, out=np.ones_like(variance), where=(parts > 0) & np.isfinite(parts))
    return Mean(after.value - before.value, variance, freedom)


def chance(errors: float, freedom: float) -> float:
    """How likely Student's t is so many standard errors or more from 0, on either side.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4; degrees of freedom rounded down.
    """
    whole = max(1, int(min(freedom, _MOST_FREEDOM)))
    angle = math.atan(abs(errors) / math.sqrt(whole))
    term = math.cos(angle) if whole % 2 else 1.0
    series = 0.0 if whole == 1 else term
    for power in range(3 if whole % 2 else 2, whole - 1, 2):
        term *= (power - 1) / power * math.cos(angle) ** 2
        series += term
    inside = math.sin(angle) * series
    return max(0.0, 1 - (2 / math.pi * (angle + inside) if whole % 2 else inside))


def errors_of_chance(wanted: float, freedom: float) -> float:
    """The inverse of chance(): how many standard errors."""
    low, high = 0.0, 1e6
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle, freedom) > wanted else (low, middle)
    return high
