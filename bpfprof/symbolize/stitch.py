"""The frames of one stack in their true order, root first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.recording.reader import RecordedProcess, Recording
from bpfprof.symbolize.python_source import PythonSource

_OK = 0


class StackSource:
    """Stacks of one recording as tuples of frames."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._python = PythonSource(recording)
        self._python_ends = np.cumsum(recording.stacks["python_count"], dtype=np.int64)
        self._texts: dict[str, str] = recording.start.get("status_texts", {})

    def reason(self, status: int) -> str:
        """Why a stack with this status is not whole; "" when it is."""
        return "" if status == _OK else str(self._texts.get(str(status), f"status {status}"))

    def frames(self, stack: int, status: int) -> tuple[Frame, ...]:
        """Frames root first; a mark comes first where the root is missing. Stack 0 has only its mark."""
        rows = self._rows(stack)
        if stack:
            status = int(self._recording.stacks["status"][stack - 1])
        frames = self._python.frames(rows[::-1])
        reason = self.reason(status)
        return (Frame(FrameKind.TRUNCATED, reason), *frames) if reason else tuple(frames)

    def _rows(self, stack: int) -> npt.NDArray[np.void]:
        if not stack:
            return self._recording.python_frames[:0]
        row = self._recording.stacks[stack - 1]
        end = int(self._python_ends[stack - 1])
        frames = self._recording.python_frames[end - int(row["python_count"]) : end]
        process_index = int(row["process"])
        if process_index >= len(self._recording.processes):
            return frames
        return frames[_is_python(frames, self._recording.processes[process_index])]


def _is_python(frames: npt.NDArray[np.void], process: RecordedProcess) -> npt.NDArray[np.bool_]:
    """False for the frames CPython puts where C calls Python (shims), which run no function."""
    if process.shim_is_python or process.python is None:  # nothing known of its marks: nothing is dropped
        return np.ones(len(frames), np.bool_)
    return np.asarray(frames["mark"] < process.entry_marks_from)
