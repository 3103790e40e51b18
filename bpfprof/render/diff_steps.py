"""How steps of recordings differ -> a table for a terminal, or JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from bpfprof.query.compare.differences import Change
from bpfprof.query.steps.differences import STEP_ROW
from bpfprof.query.steps.steps import Steps
from bpfprof.render.columns import COLUMNS, duration_text, shortened, wrapped
from bpfprof.render.header import counted
from bpfprof.render.labels import printable

Sides = tuple[Sequence[Steps], Sequence[Steps]]
_NEARLY_ALL, _MOST = 0.9, 0.5
_MANY = 1000  # percent: from so many on it is said how many times


def render_step_table(changes: Mapping[str, Change], sides: Sides, quality: Sequence[str]) -> str:
    """The answer, then a line for the step and each phase."""
    counts = [counted(sum(map(len, side)), "step") for side in sides]
    columns = f"{'before':>11} {'after':>11} {'difference':>12} {'error':>11} {'change':>8}"
    head = f"{columns}  mean of a step, and of its phases"
    blocks = [
        wrapped(sentence(changes, _is_single(sides)), "  "),
        wrapped(f"of {counts[0]} before and {counts[1]} after, with standard errors", "  "),
        [head, *[_line(name, change) for name, change in changes.items()]],
        [line for text in quality for line in wrapped(printable(text), "  ")],
    ]
    return "\n\n".join(["\n".join(block) for block in blocks if block]) + "\n"


def sentence(changes: Mapping[str, Change], is_single: bool) -> str:
    """Whether a step takes longer or less, beyond twice the error, and in which phase most of that is.

    is_single: a side has one recording alone.
    """
    step = changes[STEP_ROW]
    if abs(step.difference) <= 2 * step.error:
        told = f"a step takes {_text(step.before)} before and {_text(step.after)} after"
        found = f"no difference beyond twice the error: {told}"
        return f"{found}. Several recordings a side would tell smaller ones" if is_single else found
    word, more = ("longer", "more") if step.difference > 0 else ("less", "less")
    percent = f"{abs(step.percent(step.difference)):.1f}% ±{step.percent(step.error):.1f}%"
    rates = f"{_per_s(step.after)} steps a second, {_per_s(step.before)} before"
    told = f"a step takes {_text(abs(step.difference))} {word} than before ({percent}): {rates}"
    name = max((each for each in changes if each != STEP_ROW), key=lambda each: _part(changes, each), default="")
    part = _part(changes, name) if name else 0.0
    much = "nearly all of it is" if part >= _NEARLY_ALL else "most of it is" if part >= _MOST else ""
    return f"{told}; {much} {more} {name}" if much else told


def _is_single(sides: Sides) -> bool:
    return min(map(len, sides)) == 1


def _part(changes: Mapping[str, Change], name: str) -> float:
    """Of the difference of a step what is that of a phase."""
    return changes[name].difference / changes[STEP_ROW].difference


def _rate(seconds: float) -> float | None:
    return round(1 / seconds, 6) if seconds > 0 else None


def _per_s(seconds: float) -> str:
    return f"{1 / seconds:.3g}" if seconds > 0 else "-"


def _line(name: str, change: Change) -> str:
    percent = change.percent(change.difference)
    mark = "*" if abs(change.difference) > 2 * change.error else " "
    difference = f"{'+' if change.difference >= 0 else '-'}{_text(abs(change.difference))}{mark}"
    told = "new" if math.isinf(percent) else f"{percent:+.1f}%" if percent < _MANY else f"x{1 + percent / 100:.0f}"
    figures = (
        f"{_text(change.before):>11} {_text(change.after):>11} {difference:>12} {_text(change.error):>11} {told:>8}"
    )
    return shortened(f"{figures}  {printable(name)}", COLUMNS)


def _text(seconds: float) -> str:
    return duration_text(round(seconds * 1e9)) if math.isfinite(seconds) else "-"


def render_step_json(changes: Mapping[str, Change], sides: Sides, quality: Sequence[str]) -> str:
    """A row for the step, named so, and one for each phase."""
    rows = [
        {
            "phase" if name != STEP_ROW else "step": printable(name),
            "before_s": round(each.before, 9),
            "after_s": round(each.after, 9),
            "difference_s": round(each.difference, 9),
            "error_s": round(each.error, 9) if math.isfinite(each.error) else None,
            **({"before_per_s": _rate(each.before), "after_per_s": _rate(each.after)} if name == STEP_ROW else {}),
        }
        for name, each in changes.items()
    ]
    counts = dict(zip(("before_steps", "after_steps"), (sum(map(len, side)) for side in sides)))
    verdict = {"sentence": sentence(changes, _is_single(sides))}
    document = {"verdict": verdict, **counts, "rows": rows}
    return json.dumps({**document, "quality": [printable(text) for text in quality]}, indent=1) + "\n"
