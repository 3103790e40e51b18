"""Profile -> a table of time by function or by library, each function with its library and module."""

from __future__ import annotations

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.query.origins import Origin, origins
from bpfprof.query.totals import Totals, by_function, by_library
from bpfprof.render.columns import COLUMNS, padded, seconds_text, shortened
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import clean, frame_label

_LIBRARY, _MODULE = 16, 24  # columns
_OWN_OF = {
    "function": "own time includes that of the native code it called",
    "library": "own time includes what the interpreter and the C library did for it",
}


def by_block(profile: Profile, options: RenderOptions) -> list[str]:
    """Most CPU time of its own first, `options.limit` rows; nothing unless one of these groupings is asked for."""
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


def _times(row: Totals) -> str:
    on_cpu = f"{seconds_text(row.cpu_own_ns):>10} {seconds_text(row.cpu_total_ns):>8}"
    return f"{on_cpu} {seconds_text(row.wait_own_ns):>11} {seconds_text(row.wait_total_ns):>8}"


def _column(text: str, columns: int) -> str:
    return padded(shortened(clean(text) or "-", columns), columns)


def _name(frame: Frame, origin: Origin) -> str:
    if frame.kind == FrameKind.PYTHON or (frame.name and origin.module):
        return clean(frame.name) or "[unknown]"
    return frame_label(frame, {}, function_only=True)
