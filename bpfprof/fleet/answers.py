"""What is asked of a data set -> the answer, an object for JSON with times in seconds; text.py makes tables of it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.errors import UsageError
from bpfprof.fleet.engines import Engine
from bpfprof.fleet.queries import (
    FUNCTION,
    SIDE_TIMES,
    TIMES,
    Pair,
    side_functions,
    side_totals,
    sides,
    slowest,
    slowest_steps,
    top_functions,
    totals,
    waits_over_time,
    worked_over_time,
)
from bpfprof.query.compare.differences import Differences, compared
from bpfprof.query.compare.noise import mean_of_sums
from bpfprof.query.compare.slices import Key
from bpfprof.render.labels import printable

STEP = "step"  # of slow(): by how long steps take
_MOST_FUNCTIONS = 5_000  # that are compared
_MOST_GROUPS = 100_000
_TOLD = 0.01  # of the time of a group: what it does more of by less is not said
_LEAST_RECORDINGS = 3  # of a side: how much they differ tells what is noise


@dataclass(frozen=True)
class Asked:
    """What a query may be asked for. where, before, after: recordings with all of these labels, host and dates."""

    where: Sequence[Pair] = ()
    before: Sequence[Pair] = ()
    after: Sequence[Pair] = ()
    by: str = "host"
    sort: str = "own"
    every_s: int = 86_400
    limit: int = 10


Answer = dict[str, Any]


def top(engine: Engine, asked: Asked) -> Answer:
    """Functions with most time of their own, or as asked."""
    found = top_functions(engine, asked.where)
    order = {"own": found.own_ns, "cpu": found.cpu_ns, "wait": found.wait_ns}.get(asked.sort)
    if order is None:
        order = found.cpu_total_ns + found.wait_total_ns + found.ready_total_ns
    rows = engine.rows(found.order_by([order.desc(), *(found[name] for name in FUNCTION)]).limit(asked.limit))
    return {
        **_selected(engine, asked),
        "rows": [
            {**_function(row), **{name.replace("_ns", "_s"): _seconds(row[name]) for name in TIMES}}
            | {"recordings": row["recordings"]}
            for row in rows
        ],
    }


def waits(engine: Engine, asked: Asked) -> Answer:
    """By time and reason, in the order of time, most first."""
    found = waits_over_time(engine, asked.where, asked.every_s)
    rows = engine.rows(found.order_by([found.began, found.ns.desc(), found.reason]))
    work = {row["began"]: row for row in engine.rows(worked_over_time(engine, asked.where, asked.every_s))}
    return {
        **_selected(engine, asked),
        "every_s": asked.every_s,
        "rows": [
            {
                "began": f"{datetime.datetime.fromtimestamp(row['began'], datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
                "reason": printable(row["reason"] or "unknown"),
                "wait_s": _seconds(row["ns"]),
                "work_s": _seconds(work[row["began"]]["ns"]),
                "recordings": row["recordings"],
                "of_recordings": work[row["began"]]["recordings"],
            }
            for row in rows
        ],
    }


def slow(engine: Engine, asked: Asked) -> Answer:
    """Groups with most time for each second recorded, and what they do more of than the others."""
    if asked.sort == STEP:
        return _slow_steps(engine, asked)
    groups = _slow_groups(engine, asked)
    if not groups:
        raise UsageError(f"no recording has the label {asked.by}", "bpfprof export --label NAME=VALUE gives labels")
    return {**_selected(engine, asked), "by": asked.by, "sort": asked.sort, "rows": list(groups.values())}


def _slow_groups(engine: Engine, asked: Asked) -> dict[str, dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for row in engine.rows(slowest(engine, asked.where, asked.by, asked.sort, asked.limit)):
        name = printable(row["group"])
        group = groups.setdefault(
            name,
            {
                asked.by: name,
                "recordings": row["recordings"],
                "recorded_s": round(row["seconds"], 9),
                "own": round(row["own"], 9),
                "work": round(row["work"], 9),
                "groups": row["groups"],
                "why": [],
            },
        )
        more = {"rate": round(row["rate"], 9), "others": round(row["others"], 9), "more": round(row["more"], 9)}
        if row["groups"] > 1 and row["more"] > _TOLD * row[asked.sort]:
            group["why"].append({"reason": printable(row["reason"] or "unknown"), **_function(row), **more})
    return groups


def _slow_steps(engine: Engine, asked: Asked) -> Answer:
    """Groups whose steps take longest, the phases that do, and what the groups do more of in each second."""
    groups: dict[str, dict[str, Any]] = {}
    for row in engine.rows(slowest_steps(engine, asked.where, asked.by, asked.limit)):
        name = printable(row["group"])
        figures = {"recordings": row["with_steps"], "steps": row["steps"], "step_s": row["step"]}
        group = groups.setdefault(name, {asked.by: name, **figures, "groups": row["groups"], "phases": [], "why": []})
        more = {f"{of}_s": round(row[of], 9) for of in ("mean", "others", "more")}
        if row["groups"] > 1 and row["more"] > _TOLD * row["step"]:
            group["phases"].append({"phase": printable(row["phase"]), **more})
    if not groups:
        raise UsageError(f"no recording with a training loop that was seen has a {asked.by}", "--sort own is of all")
    for name, found in _slow_groups(engine, replace(asked, sort="own", limit=_MOST_GROUPS)).items():
        if name in groups:
            groups[name]["why"] = found["why"]
    return {**_selected(engine, asked), "by": asked.by, "sort": STEP, "rows": list(groups.values())}


def regressions(engine: Engine, asked: Asked) -> Differences:
    """Of all functions, for each second of work. Raises UsageError without some recordings on each side."""
    recordings = sides(engine, [*asked.where, *asked.before], [*asked.where, *asked.after])
    of_side = {row["side"]: row for row in engine.rows(side_totals(recordings))}
    for side, (name, pairs) in enumerate((("before", asked.before), ("after", asked.after))):
        count = of_side.get(side, {}).get("recordings", 0)
        if count < _LEAST_RECORDINGS:
            said = " ".join("=".join(pair) for pair in pairs)
            raise UsageError(
                f"{count or 'no'} recordings {name} ({said})",
                f"it takes {_LEAST_RECORDINGS} of each side to tell what is noise",
            )
    rows = engine.rows(side_functions(engine, recordings, _MOST_FUNCTIONS))
    numbers: dict[Key, int] = {}
    for row in rows:
        numbers.setdefault(_key(row), len(numbers))
    sums = np.zeros((2, 3, len(numbers), len(SIDE_TIMES)))
    for row in rows:
        for place, name in enumerate(SIDE_TIMES):
            for kind, suffix in enumerate(("x", "xx", "xw")):
                sums[row["side"], kind, numbers[_key(row)], place] += row[f"{name}_{suffix}"]
    means = []
    for side in (0, 1):
        (x, xx, xw), of_all = sums[side].reshape(3, -1, 2, 2), of_side[side]
        means.append(mean_of_sums(of_all["recordings"], x, xx, xw, of_all["work_s"], of_all["work_s2"]))
    counts = of_side[0]["recordings"], of_side[1]["recordings"]
    found = compared(list(numbers), means, [of_side[side]["work_s"] for side in (0, 1)], counts)
    left_out = max(0, (rows[0]["functions"] if rows else 0) - _MOST_FUNCTIONS)
    return Differences(found.rows, found.work_s, found.run_counts, False, 0, left_out)


def _selected(engine: Engine, asked: Asked) -> Answer:
    """Raises UsageError where no recording is as asked."""
    (found,) = engine.rows(totals(engine, asked.where))
    if not found["recordings"]:
        raise UsageError("no recording is like that", f"asked for {' '.join('='.join(pair) for pair in asked.where)}")
    times = {name.replace("_ns", "_s"): _seconds(found[name]) for name in found if name.endswith("_ns")}
    return {"recordings": found["recordings"], "hosts": found["hosts"], **times}


def _key(row: Answer) -> Key:
    where = "/".join([row["library"] or "", row["module"] or ""])
    return printable(row["function"] or ""), printable(where), 0


def _function(row: Answer) -> Answer:
    return {name: printable(row[name]) if row[name] else None for name in FUNCTION}


def _seconds(ns: Any) -> float:
    return round(int(ns) / 1e9, 9)
