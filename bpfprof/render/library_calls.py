"""Profile -> calls of libraries that were counted (record --cuda): a table, and the same for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bpfprof.model.profile import Profile
from bpfprof.query.threads.library_calls import CalledRow, library_calls
from bpfprof.render.columns import COLUMNS, duration_text, seconds_text, shortened, wrapped
from bpfprof.render.formats import RenderOptions
from bpfprof.render.header import counted
from bpfprof.render.labels import printable

NOT_COUNTED = "calls of libraries were not counted: record --cuda does that"
_WIDTHS = (11, 9, 8, 8, 8, 8, 8)
_HEADINGS = ("calls", "total s", "p50 ~", "p99 ~", "longest", "bytes", "a second")
_PARTS = (  # heading, whether they had not returned, whether another made them
    ("", False, False),
    ("made by these calls, and in their times:", False, True),
    ("had not returned when the recording ended:", True, False),
)
_UNITS = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def library_calls_block(profile: Profile, options: RenderOptions) -> list[str]:
    """Most time first, `options.most` rows; why there are none; nothing where they were not to be counted."""
    libraries = profile.info.call_libraries
    if libraries is None:
        return []
    rows, probed = library_calls(profile), [name for name, count in libraries.items() if count]
    if not rows:
        found = "no CUDA, NCCL or HIP library was mapped by any target"
        if libraries:
            found = f"none was made while {', '.join(printable(name) for name in libraries)} was probed"
        if libraries and not probed:
            found = f"{', '.join(printable(name) for name in libraries)} exports none of the functions that are counted"
        return wrapped(f"calls of libraries (--cuda): {found}", "  ")
    functions = counted(sum(libraries.values()), "function")
    lines = [shortened(f"calls of libraries, {functions} of {', '.join(map(printable, probed)) or '?'}", COLUMNS)]
    lines.append(_columns(_HEADINGS) + "function")
    left_out = 0
    for heading, is_open, is_inside in _PARTS:
        part = [row for row in rows if row.is_open == is_open and (is_open or row.is_inside == is_inside)]
        lines += [heading] * bool(part and heading) + [_line(row) for row in part[: options.most]]
        left_out += max(0, len(part) - options.most)
    return [*lines, f"and {counted(left_out, 'more row')}: --limit"] if left_out else lines


def _line(row: CalledRow) -> str:
    lengths = [duration_text(ns) if ns else "-" for ns in (row.median_ns, row.p99_ns, row.max_ns)]
    a_second = _bytes_text(row.byte_count * 1e9 / row.total_ns) if row.total_ns and not row.is_open else "-"
    moved = _bytes_text(row.byte_count)
    text = _columns((f"{row.count:,}", seconds_text(row.total_ns), *lengths, moved, a_second))
    return text + shortened(printable(row.name), max(20, COLUMNS - len(text)))


def _columns(texts: Sequence[str]) -> str:
    return " ".join([f"{text:>{width}}" for text, width in zip(texts, _WIDTHS)]) + "  "


def _bytes_text(count: float) -> str:
    """`1.50 GB`, `-` of none."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B" if count >= 1 else "-"


def library_calls_json(profile: Profile) -> dict[str, Any]:
    """`calls`: libraries, and rows in the order of the table; nothing where they were not to be counted."""
    libraries = profile.info.call_libraries
    if libraries is None:
        return {}
    rows = [
        {
            "function": printable(row.function),
            "direction": row.direction or None,
            "inside_another": row.is_inside,
            "returned": not row.is_open,
            "count": row.count,
            "total_s": row.total_ns / 1e9,
            "median_s": row.median_ns / 1e9 if row.median_ns else None,
            "p99_s": row.p99_ns / 1e9 if row.p99_ns else None,
            "longest_s": row.max_ns / 1e9,
            "bytes": row.byte_count,
            "tids": [int(profile.threads[thread].tid) for thread in row.threads],
        }
        for row in library_calls(profile)
    ]
    return {"calls": {"libraries": {printable(name): count for name, count in libraries.items()}, "rows": rows}}
