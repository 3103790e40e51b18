"""What a live view gives away on a key: files of its last seconds, and the stacks of all threads now."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bpfprof.commands.outputs import open_output, write_output
from bpfprof.commands.sources import sources_now
from bpfprof.errors import BpfprofError
from bpfprof.proc.caller import caller_ids
from bpfprof.render.formats import RenderOptions, find_format

if TYPE_CHECKING:
    from bpfprof.model.ids import Pid
    from bpfprof.recording.contents import Recording

_MOST_DUMPED = 8  # processes


def write_seconds(recording: Recording, name: str) -> Path:
    """Writes a recording, for bpfprof report; returns where. Raises BpfprofError."""
    from bpfprof.recording.whole import write_recording
    from bpfprof.recording.writer import RecordingWriter

    path = _path(name, "bpfprof")
    fd = open_output(path, caller_ids(), mode=0o600)
    try:
        write_recording(recording, RecordingWriter(fd))
    finally:
        os.close(fd)
    return path


def write_flame_graph(recording: Recording, name: str) -> Path:
    """Writes an SVG file; returns where. Raises BpfprofError."""
    from bpfprof.profile.build import build_profile

    path, graph = _path(name, "svg"), find_format("flamegraph")
    assert graph is not None
    write_output(path, graph.render(build_profile(recording), RenderOptions()), caller_ids())
    return path


def dumped(pids: Sequence[Pid], columns: int) -> list[str]:
    """Lines of a dump of these processes, of so many of them as a person may read."""
    from bpfprof.capture.now import process_now
    from bpfprof.render.dump_text import render_dump_text

    lines: list[str] = []
    for pid in pids[:_MOST_DUMPED]:
        try:
            sources = partial(sources_now, pid)
            lines += render_dump_text(process_now(pid), False, False, columns, sources).splitlines()
        except BpfprofError as error:
            lines.append(str(error))
    return lines or ["nothing is there to dump"]


def _path(name: str, suffix: str) -> Path:
    return Path(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.{suffix}")
