"""Profile with its spans -> rows of time (--by) for spreadsheets: the rows of the JSON, one a line."""

from __future__ import annotations

import csv
import io
from typing import Any

from bpfprof.model.profile import Profile
from bpfprof.render.formats import RenderOptions
from bpfprof.render.report_json import json_rows

_TIMES = tuple(f"{name}_{part}_s" for name in ("cpu", "ready", "wait") for part in ("self", "total"))


def render_csv(profile: Profile, options: RenderOptions) -> str:
    """The columns are the same for each grouping; `reasons` is `lock=1.5 net=0.25`, in seconds."""
    by, rows = json_rows(profile, options)
    columns = [by, *(name for name in ("function", "file", "line") if name != by), *_TIMES, "count", "reasons"]
    written = io.StringIO()
    writer = csv.DictWriter(written, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({**row, "reasons": _reasons(row), **{name: _plain(row[name]) for name in _TIMES}})
    return written.getvalue()


def _reasons(row: dict[str, Any]) -> str:
    return " ".join([f"{reason.replace(' ', '_')}={_plain(seconds)}" for reason, seconds in row["reasons"].items()])


def _plain(seconds: float) -> str:
    """Without an exponent."""
    return f"{seconds:.9f}"
