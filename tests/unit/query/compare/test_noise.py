"""Standard errors of means over time, and Student's t."""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof.query.compare.noise import Mean, Spread, chance, difference, errors_of_chance, mean

NO_LEAST = np.zeros(())
SPREAD = Spread(np.array(0.015), 8)
WORK = np.full(64, 10.0)


@pytest.mark.parametrize(
    ("freedom", "errors"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (24, 2.064)]
)
def test_students_t_as_in_the_tables(freedom: int, errors: float) -> None:
    """NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2: 5% on both sides."""
    assert chance(errors, freedom) == chance(-errors, freedom + 0.9) == pytest.approx(0.05, abs=1e-4)
    assert errors_of_chance(0.05, freedom) == pytest.approx(errors, abs=2e-3)
    assert chance(0, freedom) == 1 and chance(1e9, freedom) < 1e-6


def variance_without_runs(found: Mean) -> float:
    return float(found.variance - (float(SPREAD.share) * found.value) ** 2)


def test_independent_slices_have_the_error_of_independent_slices() -> None:
    generator = np.random.default_rng(5)
    found = [mean([generator.normal(3, 1, 64)], [WORK], NO_LEAST, SPREAD) for _ in range(2_000)]
    scatter = float(np.var([each.value for each in found]))
    assert np.mean([variance_without_runs(each) for each in found]) == pytest.approx(scatter, rel=0.1)
    assert scatter == pytest.approx(64 / 640**2, rel=0.1)


def test_what_repeats_adds_no_error_and_a_drift_does() -> None:
    slices = np.arange(64)
    regular = mean([3 + np.cos(2 * np.pi * slices / 3)], [WORK], NO_LEAST, SPREAD)
    slow = mean([3 + np.cos(2 * np.pi * slices / 40)], [WORK], NO_LEAST, SPREAD)
    assert variance_without_runs(regular) < 0.05 * variance_without_runs(slow)


def test_what_follows_the_work_is_no_noise() -> None:
    work = np.linspace(1, 20, 64)
    found = mean([0.3 * work], [work], NO_LEAST, SPREAD)
    assert found.value == pytest.approx(0.3) and variance_without_runs(found) == pytest.approx(0, abs=1e-12)


def test_no_sample_may_have_been_missed_by_chance() -> None:
    found = mean([np.zeros(64)], [WORK], np.array(6.4), SPREAD)
    assert found.value == 0 and found.variance == pytest.approx((6.4 / 640) ** 2)


def test_runs_tell_how_runs_differ() -> None:
    """The spread that is taken for one run counts less, the more runs there are."""

    def error_of_one(count: int, spread: float) -> float:
        values = np.linspace(-1, 1, count)
        values *= spread / values.std(ddof=1)
        found = mean([np.full(64, 3 * (1 + value)) for value in values], [WORK] * count, NO_LEAST, SPREAD)
        assert found.value == pytest.approx(0.3)
        return float(np.sqrt(found.variance * count) / 0.3)

    few, many = error_of_one(3, 0.05), error_of_one(40, 0.05)
    assert float(SPREAD.share) < few < many < 0.05 and many > 0.044
    assert error_of_one(40, 0.001) < error_of_one(3, 0.001) < float(SPREAD.share)
    alone, two = (mean([np.full(64, 3.0)] * count, [WORK] * count, NO_LEAST, SPREAD) for count in (1, 2))
    assert alone.freedom == pytest.approx(SPREAD.freedom) and two.freedom == pytest.approx(SPREAD.freedom + 1)


def test_whole_runs_differ_by_their_length() -> None:
    lengths = [np.full(64, value) for value in np.linspace(9, 11, 21)]
    found = mean([0.3 * each for each in lengths], lengths, NO_LEAST, Spread(np.array(0.1), 1), is_per_run=True)
    scatter = float(np.var(0.3 * 64 * np.linspace(9, 11, 21), ddof=1))
    assert found.value == pytest.approx(0.3 * 640) and found.variance * 21 == pytest.approx(scatter, rel=0.1)
    assert mean([0.3 * each for each in lengths], lengths, NO_LEAST, SPREAD).variance < found.variance / 10


def test_a_difference_has_the_errors_of_both() -> None:
    one = Mean(np.array([1.0]), np.array([4.0]), np.array([10.0]))
    other = Mean(np.array([3.0]), np.array([4.0]), np.array([10.0]))
    found = difference(one, other)
    assert (found.value, found.variance, found.freedom) == (2, 8, 20)
    none = Mean(np.array([0.0]), np.array([0.0]), np.array([10.0]))
    assert np.isfinite(difference(none, none).freedom).all()
