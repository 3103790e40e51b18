"""Python frames: code objects and offsets of the recording to functions, files and lines."""

from __future__ import annotations

from typing import Any

import numpy as np

from bpfprof.cpython.line_tables import LineTable
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.recording.contents import Recording
from bpfprof.recording.tables import RecordedCode


class PythonSource:
    """Frames of one recording. Lines are decoded once a function, when first asked for."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._tables: dict[tuple[tuple[int, int], bytes, int], LineTable] = {}  # processes have the same functions
        self._frames: dict[int, Frame] = {}
        rows = recording.python_frames
        self._keys = rows["code"].astype(np.int64) << 32 | rows["offset"].astype(np.int64) & 0xFFFFFFFF

    def frames(self, begin: int, end: int) -> list[Frame]:
        """A frame for each of these rows of the recording's PYTHON_FRAME_DTYPE, in their order."""
        keys = self._keys[begin:end].tolist()
        found: list[Any] = list(map(self._frames.get, keys))
        return list(map(self._frame, keys)) if None in found else found

    def _frame(self, key: int) -> Frame:
        frame = self._frames.get(key)
        if frame is None:
            offset = key & 0xFFFFFFFF
            frame = self._frames[key] = self._make(key >> 32, offset - (offset >> 31 << 32))
        return frame

    def _make(self, code_index: int, offset: int) -> Frame:
        if not 0 < code_index <= len(self._recording.codes):
            return Frame(FrameKind.PYTHON, "[code object missing from the recording]")
        code = self._recording.codes[code_index - 1]
        if code.reason:
            return Frame(FrameKind.PYTHON, f"[{code.reason}]")
        return Frame(FrameKind.PYTHON, code.qualname, code.filename, self._line(code, offset))

    def _line(self, code: RecordedCode, offset: int) -> int:
        process = self._recording.processes[code.process]
        if offset < 0 or process.python is None:
            return code.first_line
        key = process.python, code.linetable, code.first_line
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = LineTable.decode(*key)
        return table.line(offset) or table.nearest_line(offset)
