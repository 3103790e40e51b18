"""Writing a recording: each call appends one chunk, so a file that is cut anywhere holds all chunks before the cut."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Protocol

from bpfprof import array_types as npt
from bpfprof.errors import OutputError
from bpfprof.recording.format import MAGIC, MAX_CHUNK_BYTES, MAX_TEXT_BYTES, Chunk, encode

_ROWS_TOGETHER = 1000  # that of a process may have 24 KiB, mostly of its command line


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
        """Appends one chunk, or several where a table has many rows.

        Raises OutputError when it cannot be written; the file then ends with the chunk before.
        """
        rows = (fields or {}).get("rows")
        if rows is None or arrays or len(rows) <= _ROWS_TOGETHER:
            self._append(_encoded(Chunk(kind, fields or {}, arrays or {})))
            return
        for begin in range(0, len(rows), _ROWS_TOGETHER):
            self._append(_encoded(Chunk(kind, {"rows": rows[begin : begin + _ROWS_TOGETHER]})))

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


def _encoded(chunk: Chunk) -> bytes:
    """Raises ValueError for what could not be read again, nor anything behind it."""
    data = encode(chunk)
    if len(data) > MAX_CHUNK_BYTES or len(data) - sum(each.nbytes for each in chunk.arrays.values()) > MAX_TEXT_BYTES:
        raise ValueError(f"a chunk of {chunk.kind} is larger than what is read")
    return data
