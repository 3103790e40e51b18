"""The same queries over 200 recordings on DuckDB and on a Spark cluster of two workers: the rows that are known."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.ask import QUERIES
from tests.fleet.made import BAD_DAY, SECONDS, SLOW_HOST, SLOW_STEPS, SLOWER, SLOWER_BY, STEPS, Known, recordings
from tests.fleet.spark import spark_cluster

ROOT = Path(__file__).resolve().parents[2]
SPANS = 1_600  # of each recording
ON_SPARK = (
    "top",
    "top of a host",
    "waits",
    "hosts",
    "steps",
    "versions",
)  # each kind; the others differ in what is chosen
TOLERANCE = 1e-6  # sums of the same floats in another order, rounded to nanoseconds before they are shown
SCATTER_TOLERANCE = 1e-3  # of a small difference of such sums, and what follows from it


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Known]:
    folder, known = tmp_path_factory.mktemp("fleet") / "set", Known()
    for each in recordings():
        each.write(folder, SPANS)
        known.add(each)
    return folder, known


def asked(folder: Path, engine: str, environment: dict[str, str], names: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.fleet.ask", str(folder), engine, *names]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def answers(data_set: tuple[Path, Known]) -> dict[str, Any]:
    return asked(data_set[0], "duckdb", dict(os.environ), [*QUERIES])


def near(one: float, other: float, relative: float = TOLERANCE) -> bool:
    return math.isclose(one, other, rel_tol=relative, abs_tol=TOLERANCE)


def test_top(data_set: tuple[Path, Known], answers: dict[str, Any]) -> None:
    known = data_set[1].functions
    rows = answers["top"]["rows"]
    own = [sum(row[f"{state}_s"] for state in ("cpu", "ready", "wait")) for row in rows]
    assert own == sorted(own, reverse=True)
    shown = {row["function"]: row for row in rows if row["cpu_s"] + row["ready_s"] + row["wait_s"]}
    assert set(shown) == {function for function, _ in known}
    for (function, state), ns in known.items():
        assert near(shown[function][f"{state}_s"], ns / 1e9)
        assert shown[function]["recordings"] == 200
    (root,) = (row for row in rows if row["function"] == "level_0")
    for state in ("cpu", "ready", "wait"):
        assert near(root[f"{state}_total_s"], sum(ns for (_, of), ns in known.items() if of == state) / 1e9)


def test_selection(answers: dict[str, Any]) -> None:
    known = Known()
    for each in recordings():
        if each.host == "node-03" and "2026-11-02" <= each.date <= "2026-11-04":
            known.add(each)
    found = answers["top of a host"]
    assert found["recordings"] == 3 and found["hosts"] == 1
    assert near(found["cpu_s"], sum(ns for (_, state), ns in known.functions.items() if state == "cpu") / 1e9)


def test_waits(data_set: tuple[Path, Known], answers: dict[str, Any]) -> None:
    known = data_set[1].waits
    rows = {(row["began"][:10], row["reason"]): row for row in answers["waits"]["rows"]}
    assert {key: True for key in rows} == {key: near(rows[key]["wait_s"], ns / 1e9) for key, ns in known.items()}
    net = {date: row["wait_s"] / row["work_s"] for (date, reason), row in rows.items() if reason == "net"}
    assert max(net, key=lambda date: net[date]) == f"2026-11-{1 + BAD_DAY:02d}"
    hourly = answers["hourly waits"]["rows"]
    assert {row["began"] for row in hourly} == {"2026-11-08T12:00:00Z"}
    assert all(near(row["wait_s"], known["2026-11-08", row["reason"]] / 1e9) for row in hourly)


def test_slowest(data_set: tuple[Path, Known], answers: dict[str, Any]) -> None:
    first = answers["hosts"]["rows"][0]
    assert first["host"] == f"node-{SLOW_HOST:02d}"
    why = first["why"][0]
    assert (why["reason"], why["function"]) == ("disk", "read_batch")
    rates = {host: ns / 1e9 / 100 for (host, *what), ns in data_set[1].rates.items() if what == ["disk", "read_batch"]}
    own = rates.pop(first["host"])
    assert near(why["rate"], own) and near(why["others"], sum(rates.values()) / len(rates))
    assert near(why["more"], own - sum(rates.values()) / len(rates))
    ranks = answers["ranks"]["rows"]
    assert len(ranks) == 20 and ranks[0]["rank"] == str(SLOW_HOST)
    assert ranks[0]["why"][0]["function"] == "read_batch"


def test_steps(data_set: tuple[Path, Known], answers: dict[str, Any]) -> None:
    known, rows = data_set[1].phases, answers["steps"]["rows"]
    assert [row["step_s"] for row in rows] == [SECONDS / SLOW_STEPS, *[SECONDS / STEPS] * 4]
    first = rows[0]
    assert (first["rank"], first["recordings"], first["steps"]) == (str(SLOW_HOST), 10, 10 * SLOW_STEPS)
    means = {
        key: ns / 1e9 / 10 / (SLOW_STEPS if key[0] == f"node-{SLOW_HOST:02d}" else STEPS) for key, ns in known.items()
    }
    others = {key: mean for key, mean in means.items() if key[0] != f"node-{SLOW_HOST:02d}"}
    found = {each["phase"]: each for each in first["phases"]}
    assert next(iter(found)) == "data wait" and "communication" in found
    for phase, each in found.items():
        own = means[f"node-{SLOW_HOST:02d}", phase]
        of_others = [mean for (_, name), mean in others.items() if name == phase]
        assert near(each["mean_s"], own) and near(each["others_s"], sum(of_others) / len(of_others)), phase
        assert near(each["more_s"], own - sum(of_others) / len(of_others)), phase
    assert first["why"][0]["function"] == "read_batch"


def test_regressions(data_set: tuple[Path, Known], answers: dict[str, Any]) -> None:
    known = data_set[1]
    found = answers["versions"]
    assert found["run_counts"] == [100, 100]
    for work_s, version in zip(found["work_s"], ("1.4", "1.5")):
        assert near(work_s, known.work[version] / 1e9)
    told = {row["key"][0]: row for row in found["rows"]}
    for name, row in told.items():
        for side, version in (("before", "1.4"), ("after", "1.5")):
            own = row["cpu"][side] + row["wait"][side]
            assert near(own, known.by_version[version, name] / known.work[version])
    changed = {row["key"][0] for row in found["rows"] if row["cpu"]["is_found"] or row["wait"]["is_found"]}
    assert changed == {SLOWER, "allreduce"}  # the day with a slow network is one of version 1.5
    seconds = told[SLOWER]["cpu"]
    rest = [1 - seconds[side] for side in ("before", "after")]
    # For each second of other work, of which there is as much in both but for one day: 1.6 of 11 s.
    assert abs(seconds["after"] / rest[1] / (seconds["before"] / rest[0]) - SLOWER_BY) < 0.05
    # Recordings of one version on other days: nothing.
    assert not any(row["cpu"]["is_found"] or row["wait"]["is_found"] for row in answers["dates"]["rows"])


def test_spark_has_the_same_rows(data_set: tuple[Path, Known], answers: dict[str, Any], tmp_path: Path) -> None:
    with spark_cluster(tmp_path, workers=2) as (address, environment):
        found = asked(data_set[0], address, environment, ON_SPARK)
    for name in ON_SPARK:
        assert_same(found[name], answers[name], name)


def assert_same(one: Any, other: Any, where: str) -> None:
    """But for the last digits of sums."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for place, (own, others) in enumerate(zip(one, other)):
            assert_same(own, others, f"{where}[{place}]")
    elif isinstance(one, float) and not math.isinf(one):
        is_scatter = where.endswith((".freedom", ".needed", ".error"))
        assert near(one, other, SCATTER_TOLERANCE if is_scatter else TOLERANCE), (where, one, other)
    else:
        assert one == other, where
