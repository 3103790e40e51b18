"""Writing a recording: each call appends one chunk, so a file that is cut anywhere holds all chunks before the cut."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Protocol

from bpfprof import array_types as npt
from bpfprof.errors import OutputError
from bpfprof.recording.format import MAGIC, Chunk, encode


class Sink(Protocol):
    """Where a recording goes, a chunk at a time: a file, or a `Recording` that is looked at while it grows."""

    def write(
        self, kind: str, fields: dict[str, Any] | None = None, arrays: dict[str, npt.NDArray[Any]] | None = None
    ) -> None: ...


class RecordingWriter:
    """Appends chunks to an open, empty file; the descriptor stays the caller's to close."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.written_bytes = 0
        self._append(MAGIC)

    def write(
        self, kind: str, fields: dict[str, Any] | None = None, arrays: dict[str, npt.NDArray[Any]] | None = None
    ) -> None:
        """Appends one chunk. Raises OutputError when it cannot be written; the file then ends with the chunk before."""
        self._append(encode(Chunk(kind, fields or {}, arrays or {})))

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):  # what cannot be cut, the reader leaves out
                os.ftruncate(self._fd, self.written_bytes)
                os.lseek(self._fd, self.written_bytes, os.SEEK_SET)
            raise OutputError(f"the recording could not be written on: {error.strerror}", "free some space") from error
        self.written_bytes += len(data)
