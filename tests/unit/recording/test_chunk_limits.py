"""What is written can be read again: a chunk has at most what the reader takes, and a table of many rows is several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bpfprof.recording import writer
from bpfprof.recording.format import MAGIC, decode
from bpfprof.recording.writer import RecordingWriter

ROWS = [{"index": index, "name": "x" * 20} for index in range(2500)]


@pytest.mark.parametrize("limit", ["MAX_CHUNK_BYTES", "MAX_TEXT_BYTES"])
def test_a_chunk_that_could_not_be_read_again_is_not_written(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, limit, 4096)
    with open(tmp_path / "x", "w+b") as file:
        to = RecordingWriter(file.fileno())
        to.write("start", {"name": "x" * 100})
        written_bytes = to.written_bytes
        with pytest.raises(ValueError, match="larger than what is read"):
            to.write("objects", {"text": "x" * 5000}, {"rows": np.zeros(10)})
        assert file.seek(0, 2) == to.written_bytes == written_bytes, "the file ends with the chunk before"


def test_a_table_of_many_rows_is_several_chunks(tmp_path: Path) -> None:
    with open(tmp_path / "x", "w+b") as file:
        RecordingWriter(file.fileno()).write("objects", {"rows": ROWS})
        file.seek(len(MAGIC))
        chunks = []
        while (chunk := decode(file)) is not None:
            chunks.append(chunk)
    assert [len(chunk.fields["rows"]) for chunk in chunks] == [1000, 1000, 500]
    assert [row for chunk in chunks for row in chunk.fields["rows"]] == ROWS
