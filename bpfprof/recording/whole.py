"""A Recording -> a file: what was read, or is a part of one that is being made, written as one recording again."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np

from bpfprof.recording.contents import Recording
from bpfprof.recording.tables import table_row
from bpfprof.recording.writer import Sink

_TABLES = ("files", "processes", "threads", "tasks", "wakers", "objects", "last_waits")
_ROWS = ("natives", "samples", "waits", "totals", "short_waits", "events", "lock_holders")


def write_recording(recording: Recording, sink: Sink) -> None:
    """Writes all of it but what tasks wait for. Raises what the sink does."""
    sink.write("start", {**recording.start})
    for kind in _TABLES:
        rows = [table_row(index, row) for index, row in enumerate(getattr(recording, kind))]
        if rows:
            sink.write(kind, {"rows": rows})
    tables = [code.linetable for code in recording.codes]
    ends = np.cumsum([len(table) for table in tables], dtype=np.uint64)
    rows_of_codes = [list(astuple(code)[:-1]) for code in recording.codes]
    blob = np.frombuffer(b"".join(tables), np.uint8)
    sink.write("codes", {"rows": rows_of_codes}, {"linetable_ends": ends, "linetables": blob})
    arrays = {
        "stacks": recording.stacks,
        "python": recording.python_frames,
        "native": recording.native_frames,
    }
    sink.write("stacks", arrays=arrays)
    for kind in _ROWS:
        sink.write(kind, arrays={"rows": getattr(recording, kind)})
    names = recording.names.copy()
    used = np.unique(np.concatenate([names["function"], names["file"]]))
    for column in ("function", "file"):
        names[column] = np.searchsorted(used, names[column])
    sink.write("names", {"texts": [recording.texts[text] for text in used.tolist()]}, {"rows": names})
    sink.write("end", {**recording.end})
