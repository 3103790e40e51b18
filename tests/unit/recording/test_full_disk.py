"""A disk that is full: the user is told, and what was written reads back."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfprof.errors import OutputError
from bpfprof.recording.reader import read_recording
from bpfprof.recording.writer import RecordingWriter
from tests.unit.recording.hand_made import HandMade, small

LIMIT_BYTES = 40_000


@contextlib.contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file of this process may grow larger; write(2) then fails with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def fill(path: Path, made: HandMade) -> RecordingWriter:
    """Writes until nothing more goes in, then looks at what is there."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    writer = RecordingWriter(fd)
    *chunks, _ = made.chunks()
    with pytest.raises(OutputError, match="could not be written") as caught:
        for _ in range(10_000):
            for chunk in chunks:
                if writer.written_bytes < 4096 or chunk.kind in ("samples", "waits"):
                    writer.write(chunk.kind, chunk.fields, chunk.arrays)
    assert caught.value.exit_code == 5 and caught.value.hint
    os.close(fd)
    assert path.stat().st_size == writer.written_bytes, "half a chunk was left"
    return writer


def assert_reads_back(path: Path) -> None:
    with open(path, "rb") as file:
        recording = read_recording(file)
    assert "no end" in recording.unfinished
    assert len(recording.samples) > 2 and len(recording.threads) == 2


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "a.bpfprof"
    with file_size_limit(LIMIT_BYTES):
        writer = fill(path, small())
    assert LIMIT_BYTES - 4096 < writer.written_bytes <= LIMIT_BYTES
    assert_reads_back(path)


def test_writing_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    path = tmp_path / "a.bpfprof"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    writer = RecordingWriter(fd)
    *chunks, end = small().chunks()
    with file_size_limit(10_000), pytest.raises(OutputError):
        for _ in range(1000):
            writer.write(chunks[0].kind, chunks[0].fields, chunks[0].arrays)
    for chunk in [*chunks[1:], end]:
        writer.write(chunk.kind, chunk.fields, chunk.arrays)
    os.close(fd)
    with open(path, "rb") as file:
        assert not read_recording(file).unfinished


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_file_system() -> None:
    with tempfile.TemporaryDirectory(prefix="bpfprof-test-") as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True, check=False
        )
        if mounted.returncode:
            pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
        try:
            fill(Path(folder, "a.bpfprof"), small())
            assert_reads_back(Path(folder, "a.bpfprof"))
        finally:
            subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_device_that_is_always_full() -> None:
    fd = os.open("/dev/full", os.O_RDWR)
    try:
        with pytest.raises(OutputError, match="No space left"):
            RecordingWriter(fd)
    finally:
        os.close(fd)


def test_an_error_that_cannot_be_undone_is_still_told() -> None:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    try:
        writer = RecordingWriter(writing)  # a pipe cannot be cut
        with pytest.raises(OutputError):
            for _ in range(100_000):
                writer.write("other")
    finally:
        os.close(reading)
        os.close(writing)
