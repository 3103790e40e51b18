"""What differs between two sides of recordings -> a table for a terminal, or JSON."""

from __future__ import annotations

import json
import math

from bpfprof.query.differences import Comparison, Difference
from bpfprof.render.columns import COLUMNS, shortened, wrapped
from bpfprof.render.labels import clean, short_file_names

_NAMED = 3
_WORDS = {
    "function": ("function", "file"),
    "line": ("function", "file", "line"),
    "file": ("file",),
    "library": ("library",),
    "thread": ("thread",),
    "reason": ("reason",),
}


def render_difference(found: Comparison, by: str, limit: int, sides: tuple[str, str], full_filenames: bool) -> str:
    """The answer, then the largest differences; sides: what each is called."""
    names = _names(found, by, full_filenames)
    of = f"seconds in {found.wall_s:.1f} s of wall time" if found.wall_s else "seconds of a run"
    lines = [*wrapped(sentence(found, by, full_filenames), "  "), ""]
    lines += wrapped(f"before: {clean(sides[0])}; after: {clean(sides[1])}; {of}, idle threads left out", "  ")
    lines += ["", f"{'before':>9} {'after':>9} {'difference':>11} {'error':>8} {'change':>8}  {by}"]
    for row, name in [*zip(found.differences, names)][:limit]:
        mark = "*" if row.is_beyond_noise else " "
        figures = f"{row.before_s:>9.3f} {row.after_s:>9.3f} {row.difference_s:>+10.3f}{mark} {row.error_s:>8.3f}"
        lines.append(shortened(f"{figures} {_change(row):>8}  {name}", COLUMNS))
    left_out = len(found.differences) - limit
    lines += [f"and {left_out:,} more (--limit)"] * (left_out > 0)
    lines += ["", "* beyond noise: one comparison in 20 of a program with itself has such a row by chance"]
    return "\n".join(lines) + "\n"


def render_difference_json(found: Comparison, by: str, sides: tuple[str, str]) -> str:
    """All rows; times in seconds."""
    rows = [
        {
            **dict(zip(_WORDS[by], row.key)),
            "before_s": row.before_s,
            "after_s": row.after_s,
            "difference_s": row.difference_s,
            "error_s": row.error_s,
            "is_beyond_noise": row.is_beyond_noise,
        }
        for row in found.differences
    ]
    for row in rows if by == "line" else ():
        row["line"] = int(str(row["line"] or 0))
    document = {
        "verdict": {
            "sentence": sentence(found, by, True),
            "is_beyond_noise": any(row.is_beyond_noise for row in found.differences),
        },
        "before": sides[0],
        "after": sides[1],
        "wall_s": found.wall_s or None,
        "rows": rows,
    }
    return json.dumps(document, indent=1) + "\n"


def sentence(found: Comparison, by: str, full_filenames: bool) -> str:
    """`No difference beyond noise.`, or what has more time or less, with its error."""
    named = [
        f"{name} has {_change(row)} (error {_error(row)})"
        for row, name in zip(found.differences, _names(found, by, full_filenames))
        if row.is_beyond_noise
    ]
    if not named:
        return "No difference beyond noise."
    more = len(named) - _NAMED
    return f"Beyond noise: {'; '.join(named[:_NAMED])}{f'; and {more} more' if more > 0 else ''}."


def _names(found: Comparison, by: str, full_filenames: bool) -> list[str]:
    if by not in ("function", "line", "file"):
        return [clean(row.key[0]) or "[unknown]" for row in found.differences]
    place = 0 if by == "file" else 1
    paths = {row.key[place] for row in found.differences}
    shown = {path: path for path in paths} if full_filenames else short_file_names(paths)
    names = []
    for row in found.differences:
        file = clean(shown[row.key[place]])
        line = f":{row.key[2]}" if by == "line" and row.key[2] not in ("", "0") else ""
        name = file if by == "file" else f"{clean(row.key[0])} ({file}{line})" * bool(row.key[0])
        names.append(name or "[no function]")
    return names


def _change(row: Difference) -> str:
    return "new" if math.isinf(row.change) else f"{row.change:+.1%}"


def _error(row: Difference) -> str:
    return f"{row.error_s / row.before_s:.1%}" if row.before_s else f"{row.error_s:.3f} s"
