"""Python frames: code objects and offsets of the recording to functions, files and lines."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from bpfprof.cpython.line_tables import LineTable
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.recording.contents import Recording
from bpfprof.recording.tables import RecordedCode

_MOST_TABLES, _MOST_FRAMES = 4096, 20_000  # that are known


@dataclass(frozen=True)
class KnownFunctions:
    """Of recordings of the same programs: line tables by Python, bytes and first line, frames by Python and offset."""

    tables: dict[tuple[tuple[int, int], bytes, int], LineTable] = field(default_factory=dict)
    frames: dict[tuple[tuple[int, int] | None, RecordedCode, int], Frame] = field(default_factory=dict)

    def forget_many(self) -> None:
        """Gives up all when there is much of it."""
        if len(self.tables) > _MOST_TABLES or len(self.frames) > _MOST_FRAMES:
            self.tables.clear()
            self.frames.clear()


class PythonSource:
    """Frames of one recording. Lines are decoded once a function, when first asked for."""

    def __init__(self, recording: Recording, known: KnownFunctions | None = None) -> None:
        self._recording = recording
        self._known = known or KnownFunctions()  # processes have the same functions
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
        key = self._recording.processes[code.process].python, code, offset
        frame = self._known.frames.get(key)
        if frame is None:
            frame = Frame(FrameKind.PYTHON, code.qualname, code.filename, self._line(*key))
            self._known.frames[key] = frame
        return frame

    def _line(self, python: tuple[int, int] | None, code: RecordedCode, offset: int) -> int:
        if offset < 0 or python is None:
            return code.first_line
        key = python, code.linetable, code.first_line
        table = self._known.tables.get(key)
        if table is None:
            table = self._known.tables[key] = LineTable.decode(*key)
        return table.line(offset) or table.nearest_line(offset)
