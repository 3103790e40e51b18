"""What a command adds to a recording that it keeps."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from bpfprof.commands.recording import _add_accounting
from bpfprof.recording.reader import RecordedAccount, read_recording
from bpfprof.recording.writer import RecordingWriter
from tests.unit.recording.hand_made import small
from tests.unit.render.profiles import MS, waiting_profile


def written(stream: BinaryIO) -> RecordingWriter:
    """A whole recording, which was read once."""
    writer = RecordingWriter(stream.fileno())
    for chunk in small().chunks():
        if chunk.kind != "accounting":
            writer.write(chunk.kind, chunk.fields, chunk.arrays)
    stream.seek(0)
    read_recording(stream)
    return writer


def test_the_accounting_is_the_last_chunk(tmp_path: Path) -> None:
    with open(tmp_path / "a", "w+b") as stream:
        _add_accounting(written(stream), stream, waiting_profile())
    with open(tmp_path / "a", "rb") as file:
        recording = read_recording(file)
    assert not recording.unfinished and [row.tid for row in recording.accounting] == [100, 101, 102, 103]
    assert recording.accounting[2] == RecordedAccount(
        100, 102, "python", "hog", 1_700 * MS, 200 * MS, 0, 1_500 * MS, {"disk": 1_500 * MS}
    )


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_full_disk_leaves_the_recording_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    rest = [room]

    def write(fd: int, data: memoryview) -> int:
        if not rest[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = real_write(fd, data[: rest[0]])
        rest[0] -= count
        return count

    real_write = os.write
    with open(tmp_path / "a", "w+b") as stream:
        writer = written(stream)
        before = (tmp_path / "a").read_bytes()
        monkeypatch.setattr(os, "write", write)
        _add_accounting(writer, stream, waiting_profile())
        monkeypatch.undo()
    assert (tmp_path / "a").read_bytes() == before
    with open(tmp_path / "a", "rb") as file:
        assert not read_recording(file).unfinished
