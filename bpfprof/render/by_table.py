"""Profile -> a table of time by what it was spent in: functions with library and module, libraries, threads ..."""

from __future__ import annotations

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.query.origins import Origin, origins
from bpfprof.query.rows import ROW_GROUPINGS, Row, rows_by
from bpfprof.query.totals import Totals, by_function, by_library
from bpfprof.query.work import work_of
from bpfprof.render.columns import COLUMNS, padded, seconds_text, shortened
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import clean, frame_label

_LIBRARY, _MODULE = 16, 24  # columns
_REASONS = 3
_OWN_OF = {
    "function": "own time includes that of the native code it called",
    "library": "own time includes what the interpreter and the C library did for it",
}


def by_block(profile: Profile, options: RenderOptions) -> list[str]:
    """Most CPU time of its own first, `options.limit` rows; nothing unless one of these groupings is asked for."""
    if options.by in ROW_GROUPINGS and options.by not in _OWN_OF:
        return _rows_block(profile, options)
    if options.by not in _OWN_OF:
        return []
    found = origins(profile.frames)
    is_function = options.by == "function"
    rows = by_function(profile) if is_function else by_library(profile)
    if not rows:
        return []
    lines = [f"time by {options.by}: {_OWN_OF[options.by]}"]
    lines.append(f"{'on-CPU own':>10} {'total s':>8} {'off-CPU own':>11} {'total s':>8}  {'library':<{_LIBRARY}}")
    lines[-1] = f"{lines[-1]} {'module':<{_MODULE}} function" if is_function else lines[-1].rstrip()
    for row in rows[: options.limit]:
        text = _times(row) + "  " + _column(found[row.frame].library, _LIBRARY if is_function else COLUMNS - 43)
        if is_function:
            text += f" {_column(found[row.frame].module, _MODULE)} {_name(profile.frames[row.frame], found[row.frame])}"
        lines.append(shortened(text, COLUMNS).rstrip())
    left_out = len(rows) - options.limit
    return [*lines, *[f"and {left_out:,} more (--limit)"] * (left_out > 0)]


def _rows_block(profile: Profile, options: RenderOptions) -> list[str]:
    """Most time of its own first. The profile has its spans, else ValueError."""
    rows = rows_by(profile, work_of(profile), options.by)
    if not rows:
        return []
    lines = [f"time by {options.by}, waits for work left out"]
    lines.append(f"{'on-CPU own':>10} {'total s':>8} {'run queue':>9} {'off-CPU own':>11} {'total s':>8}  {options.by}")
    for row in rows[: options.limit]:
        (cpu, ready, wait), (all_cpu, _, all_wait) = row.own_ns, row.total_ns
        text = f"{seconds_text(cpu):>10} {seconds_text(all_cpu):>8} {seconds_text(ready):>9} "
        text += f"{seconds_text(wait):>11} {seconds_text(all_wait):>8}  {_row_name(row, options.by)}"
        lines.append(shortened(text, COLUMNS))
    left_out = len(rows) - options.limit
    return [*lines, *[f"and {left_out:,} more (--limit)"] * (left_out > 0)]


def _row_name(row: Row, by: str) -> str:
    if by == "line" and row.frame is not None:
        return frame_label(row.frame, {row.frame.file: clean(row.frame.file.rsplit("/", 1)[-1])}, function_only=False)
    reasons = ", ".join(f"{clean(reason)} {seconds_text(ns)}" for reason, ns in [*row.reasons.items()][:_REASONS])
    return clean(row.name) + (f"  ({reasons})" if reasons and by not in ("file", "reason", "lock") else "")


def _times(row: Totals) -> str:
    on_cpu = f"{seconds_text(row.cpu_own_ns):>10} {seconds_text(row.cpu_total_ns):>8}"
    return f"{on_cpu} {seconds_text(row.wait_own_ns):>11} {seconds_text(row.wait_total_ns):>8}"


def _column(text: str, columns: int) -> str:
    return padded(shortened(clean(text) or "-", columns), columns)


def _name(frame: Frame, origin: Origin) -> str:
    if frame.kind == FrameKind.PYTHON or (frame.name and origin.module):
        return clean(frame.name) or "[unknown]"
    return frame_label(frame, {}, function_only=True)
