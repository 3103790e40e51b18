"""Files that are no recordings, or cannot be read: a sentence that names the file and says what it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bpfprof.commands.recording_file import unreadable
from bpfprof.recording.format import MAGIC
from tests.unit.commands.command import run, written
from tests.unit.recording.hand_made import small

NEWER, OLDER = (MAGIC[:-1] + bytes([MAGIC[-1] + step]) for step in (1, -1))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b'<?xml version="1.0"?>\n<svg xmlns="x">', "is an SVG picture, not a recording"),
        (b"<!DOCTYPE html>", "is a web page, not a recording"),
        (b'{"profiles": []}', "is JSON, not a recording"),
        (b"\x7fELF\x02", "is a program or a library, not a recording"),
        (b"\x1f\x8b\x08", "is a compressed file, not a recording"),
        (b"PERFILE2", "is a recording of perf, not a recording"),
        (b"process a (1);thread b (2);f 10\n", "is text made of a recording, not a recording"),
        (b"junk\n" * 2000, "is not a recording"),
        (b"BPFPROF", "is not a recording"),
        (NEWER + bytes(100), f"is a recording of format {NEWER[-1]}, and this bpfprof reads format {MAGIC[-1]}"),
        (OLDER + bytes(100), f"is a recording of format {OLDER[-1]}, and this bpfprof reads format {MAGIC[-1]}"),
    ],
)
@pytest.mark.parametrize("command", ["report", "offcpu"])
def test_what_is_no_recording(command: str, content: bytes, said: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "x.bpfprof"
    path.write_bytes(content)
    assert run(command, path) == 5
    assert capsys.readouterr().err.startswith(f"bpfprof: {path} {said}\n")


def test_diff_names_the_one_that_is_none(tmp_path: Path, capsys) -> None:
    (tmp_path / "x").write_bytes(b"junk")
    assert run("diff", written(small(), tmp_path), tmp_path / "x") == 5
    assert f"{tmp_path / 'x'} is not a recording" in capsys.readouterr().err


def test_nobody_is_waited_for(tmp_path: Path, capsys) -> None:
    """Who would write to a FIFO is not there; what a shell has opened is read."""
    path, fifo = written(small(), tmp_path), tmp_path / "fifo"
    os.mkfifo(fifo)
    for arguments in (("report", fifo), ("offcpu", fifo), ("diff", path, fifo), ("report", "/dev/zero")):
        assert run(*arguments) == 5
        assert capsys.readouterr().err.startswith(f"bpfprof: {arguments[-1]} is not a file\n")
    reading, writing = os.pipe()
    os.write(writing, path.read_bytes())
    os.close(writing)
    assert run("report", f"/dev/fd/{reading}") == 0
    os.close(reading)


def test_a_recording_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.bpfprof"
    path.touch()
    denied = PermissionError(13, "Permission denied")
    assert "its mode does not let you" in str(unreadable(path, denied))
    monkeypatch.setattr(os, "geteuid", lambda: 12345678)
    told = unreadable(path, denied)
    assert f"{path} cannot be read: it belongs to " in str(told) and told.hint == f"sudo chown $USER {path}"
    assert "its folder does not let you" in str(unreadable(tmp_path / "nothing" / "x", denied))
    assert told.exit_code == 5
