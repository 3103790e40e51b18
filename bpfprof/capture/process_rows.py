"""Rows of the table of processes, each written once for all that changes meanwhile."""

from __future__ import annotations

from typing import Any

from bpfprof.capture.process import Process
from bpfprof.recording.tables import table_row
from bpfprof.recording.writer import Sink


class ProcessRows:
    """Of one recording."""

    def __init__(self) -> None:
        self._changed: dict[int, Process] = {}
        self._rows: list[dict[str, Any]] = []

    def changed(self, process: Process) -> None:
        """Its row may say something else than the last one."""
        self._changed[process.index] = process

    def make(self) -> None:
        """Of what changed up to now: what changes later has another row."""
        for process in self._changed.values():
            row = process.recorded()
            if row != process.written:
                process.written = row
                self._rows.append(table_row(process.index, row))
        self._changed.clear()

    def write_new(self, sink: Sink) -> None:
        """What the recording does not have yet."""
        self.make()
        if self._rows:
            sink.write("processes", {"rows": self._rows})
            self._rows = []
