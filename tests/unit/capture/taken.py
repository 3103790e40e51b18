"""What a table writes that the recording does not have yet."""

from __future__ import annotations

from typing import Any, Protocol

from bpfprof.recording.format import Chunk
from bpfprof.recording.writer import Sink


class Table(Protocol):
    def write_new(self, sink: Sink) -> object: ...


class _Chunks(dict[str, Chunk]):
    def write(self, kind: str, fields: dict[str, Any] | None = None, arrays: dict[str, Any] | None = None) -> None:
        self[kind] = Chunk(kind, fields or {}, arrays or {})


def new_chunks(table: Table) -> dict[str, Chunk]:
    """By their kind."""
    chunks = _Chunks()
    table.write_new(chunks)
    return chunks


def new_rows(table: Table, kind: str) -> list[Any]:
    """Rows of one kind; [] when there are none."""
    return list(new_chunks(table).get(kind, Chunk(kind, {"rows": []})).fields["rows"])
