"""What differs between recordings -> a table for a terminal, or JSON for programs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from bpfprof.dataclass import dataclass
from bpfprof.known.patterns import PhasePattern
from bpfprof.query.compare.differences import FALSE_ALARMS, Change, Difference, Differences
from bpfprof.query.compare.slices import Key
from bpfprof.render.columns import COLUMNS, shortened, wrapped
from bpfprof.render.header import counted
from bpfprof.render.labels import printable, short_file_names

_NAMED = 3
_RED, _GREEN, _END = "\x1b[31m", "\x1b[32m", "\x1b[0m"
_KEYS = {"function": ("function", "file"), "line": ("function", "file", "line"), "file": (None, "file")}
_PLURALS = {"library": "libraries", "process": "processes"}
_Cell = tuple[Difference, Change, Change, str]  # the row, its own time, its total time, the state


@dataclass(frozen=True)
class DiffLook:
    """Choices that change how differences are written."""

    by: str = "function"
    limit: int = 10
    merge: str = "none"
    step: re.Pattern[str] | None = None  # steps are calls of a function with this in its name; None: they are found
    phases: Sequence[PhasePattern] = ()  # of steps, beside those that are known
    full_filenames: bool = False
    is_coloured: bool = False
    ascii_only: bool = False


def render_diff_table(found: Differences, look: DiffLook, quality: Sequence[str]) -> str:
    """The answer, what was compared, the largest differences, how good the recordings are."""
    labels = row_labels(found, look)
    blocks = [
        wrapped(sentence(found, look), "  "),
        wrapped(basis(found), "  "),
        _rows_block(cells(found), look, labels),
        [line for text in quality for line in wrapped(printable(text), "  ")],
    ]
    return "\n\n".join(["\n".join(block) for block in blocks if block]) + "\n"


def _rows_block(rows: list[_Cell], look: DiffLook, labels: dict[Key, str]) -> list[str]:
    head = f"{'before':>9} {'after':>9} {'difference':>11} {'error':>8} {'change':>8} {'total diff.':>11}"
    lines = [f"{head}  state {look.by}"] if rows else []
    for row, own, total, state in rows[: look.limit]:
        figures = f"{_seconds(own.before):>9} {_seconds(own.after):>9} {_signed(own.difference):>10}"
        mark = "*" if own.is_found else "+" if own.is_slower(0) else "~" if own.is_left else " "
        figures += f"{mark} {_seconds(own.error):>8} {_percent(own):>8} {_signed(total.difference):>11}"
        line = shortened(f"{figures}  {state:<5} {labels[row.key]}", COLUMNS)
        if look.is_coloured and own.is_found:
            line = (_RED if own.difference > 0 else _GREEN) + line + _END
        lines.append(line)
    left_out = len(rows) - look.limit
    lines += [f"and {left_out:,} more (--limit)"] * (left_out > 0)
    if any(own.is_found for _, own, _, _ in rows):
        lines.append(f"* beyond noise: by chance {FALSE_ALARMS:.0%} of comparisons of like with like have any")
    if any(own.is_slower(0) and not own.is_found for _, own, _, _ in rows[: look.limit]):
        lines.append("+ slower by more than twice its error, which --fail-over counts: of 40 rows one is by chance")
    if any(own.is_left for _, own, _, _ in rows[: look.limit]):
        lines.append("~ only its share differs, because what is marked * takes more or less")
    return lines


def render_diff_json(found: Differences, look: DiffLook, quality: Sequence[str]) -> str:
    """All rows. Times are of own time in seconds, for each second of work unless they are of a run."""
    what = "run" if found.is_per_run else "second of work"
    names = ("before", "after")
    document = {
        "verdict": {
            "sentence": sentence(found, look),
            "is_beyond_noise": any(change.is_found for _, change in found.tested),
        },
        "normalised": {
            "by": what,
            **{f"{name}_work_s": work_s for name, work_s in zip(names, found.work_s)},
            **{f"{name}_recordings": count for name, count in zip(names, found.run_counts)},
        },
        "rows": [_json_row(row, look.by) for row in found.rows],
        "left_out": found.left_out,
        "quality": [printable(text) for text in quality],
    }
    return json.dumps(document, indent=1) + "\n"


def _json_row(row: Difference, by: str) -> dict[str, Any]:
    names = {name: value for name, value in zip(_KEYS.get(by, (by,)), row.key) if name}
    if by == "thread":
        names = {"process": row.key[0], "thread": row.key[1]}
    return {
        **names,
        **_json_change(row.both),
        "is_beyond_noise": any(change.is_found for change in row.changes),
        "total": _json_change(row.both_total),
        "cpu": {**_json_change(row.cpu), "is_beyond_noise": row.cpu.is_found, "total": _json_change(row.cpu_total)},
        "wait": {**_json_change(row.wait), "is_beyond_noise": row.wait.is_found, "total": _json_change(row.wait_total)},
    }


def _json_change(change: Change) -> dict[str, float]:
    figures = change.before, change.after, change.difference, change.error
    return dict(zip(("before_s", "after_s", "difference_s", "error_s"), (round(each, 9) for each in figures)))


def sentence(found: Differences, look: DiffLook) -> str:
    """`no difference beyond noise`, or what got slower or faster, by how much, and how sure that is."""
    labels = row_labels(found, look)
    changed = [(row, change) for row, change in found.tested if change.is_found]
    if not changed:
        return f"no difference beyond noise: {_not_found(found, look, labels)}"
    changed.sort(key=lambda each: (each[1].difference < 0, -abs(each[1].difference)))
    told = [_told(row, change, look, labels) for row, change in changed[:_NAMED]]
    more = len(changed) - _NAMED
    return "; ".join([*told, *[f"and {more:,} more"] * (more > 0)])


def _not_found(found: Differences, look: DiffLook, labels: dict[Key, str]) -> str:
    if not found.tested:
        return "nothing takes time enough to tell"
    row, largest = max(found.tested, key=lambda each: each[1].before)
    what = counted(len({each.key for each, _ in found.tested}), look.by, _PLURALS.get(look.by, ""))
    text = f"none of {what} changed by more than chance explains"
    slower = [change for _, change in found.tested if change.is_slower(0)]
    text += f", though {len(slower)} by more than twice its error" * bool(slower)
    needed = largest.percent(largest.needed)
    if not math.isfinite(needed):
        return text
    enough = f"{needed:.{needed < 10:d}f}%"
    text += f"; of {labels[row.key]}, the largest, a change of {enough} or more would have been found"
    return text + ". Several recordings a side (--before, --after) tell smaller ones" * (found.run_counts == (1, 1))


def _told(row: Difference, change: Change, look: DiffLook, labels: dict[Key, str]) -> str:
    is_more, is_wait = change.difference > 0, change is row.wait
    if look.by in ("function", "line"):
        words = ("waits longer", "waits less") if is_wait else ("got slower", "got faster")
    else:
        where = "in waits" if is_wait else "on a CPU"
        words = f"takes more time {where}", f"takes less time {where}"
    label = labels[row.key]
    if not change.before:
        return f"{label} is new{' in waits' * is_wait}: {_seconds(change.after)} s"
    sign = "+-" if look.ascii_only else "±"
    percent = abs(change.percent(change.difference))
    error = change.percent(change.error)
    return f"{label} {words[0] if is_more else words[1]} by {percent:.1f}% ({sign}{error:.1f}%)"


def basis(found: Differences) -> str:
    """What was compared, in which unit."""
    sides = [
        f"{name} {work_s:.2f} s in {counted(count, 'recording')}"
        for name, work_s, count in zip(("before", "after"), found.work_s, found.run_counts)
    ]
    unit = "seconds of a run" if found.is_per_run else "seconds for each second of work"
    text = f"{unit}, of own time, with standard errors; work is time on a CPU and in waits that are not idle: "
    text += "; ".join(sides)
    if found.stuck_threads:
        text += f"; {counted(found.stuck_threads, 'thread')} left out that sat in one wait"
    return text + f"; {found.left_out:,} groups with least time left out" * bool(found.left_out)


def cells(found: Differences) -> list[_Cell]:
    """Rows of a table: what was found first, then what differs most."""
    rows = [
        cell
        for row in found.rows
        for cell in ((row, row.cpu, row.cpu_total, "CPU"), (row, row.wait, row.wait_total, "wait"))
        if cell[1].before or cell[1].after or abs(cell[2].difference) > 2 * cell[2].error
    ]
    return sorted(rows, key=lambda cell: (not cell[1].is_found, -abs(cell[1].difference)))


def row_labels(found: Differences, look: DiffLook) -> dict[Key, str]:
    """As in reports: `function (file)`, with its line where they are compared by line."""
    paths = {row.key[1] for row in found.rows} if look.by in _KEYS else set()
    files = {path: path for path in paths} if look.full_filenames else short_file_names(paths)
    labels = {}
    for row in found.rows:
        name, file, line = row.key
        label = printable(name) or "[unknown]"
        if look.by in _KEYS:
            place = printable(files[file]) or "[unknown]"
            is_unnamed = name.startswith(f"{file}+0x")
            label = (
                place if look.by == "file" else label if is_unnamed else f"{label} ({place}{f':{line}' * bool(line)})"
            )
        elif look.by == "thread":
            label = f"process {label};thread {printable(file) or '?'}"
        labels[row.key] = label
    return labels


def _percent(change: Change) -> str:
    percent = change.percent(change.difference)
    if math.isinf(percent):
        return "new" if change.after else "-"
    return f"{percent:+.1f}%"


def _seconds(seconds: float) -> str:
    return f"{seconds:.4f}" if abs(seconds) < 100 else f"{seconds:.1f}"


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{_seconds(abs(seconds))}"
