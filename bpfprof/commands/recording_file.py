"""A file that is to be read as a recording: what is said when it is none."""

from __future__ import annotations

import os
import pwd
import stat
from io import BufferedReader
from pathlib import Path

from bpfprof.commands.outputs import descriptor
from bpfprof.errors import RecordingError
from bpfprof.recording.format import MAGIC

_LOOKED_AT = 4096  # bytes
# How a file begins -> what it is; in lower case, blanks before it left out.
_BEGINNINGS = (
    (b"perfile2", "a recording of perf"),
    (b"\x7felf", "a program or a library"),
    (b"\x1f\x8b", "a compressed file"),
    (b"\x89png", "a picture"),
    (b"<!doctype html", "a web page"),
    (b"<html", "a web page"),
    (b"{", "JSON"),
    (b"process ", "text made of a recording"),
)
_STANDARD_INPUT = Path("/dev/stdin")
_HOW = "bpfprof record -o FILE.bpfprof makes one"


def open_recording(path: Path) -> BufferedReader:
    """Raises RecordingError where it begins as none, and for what is no file: a FIFO may have nobody who writes to it.

    What bpfprof was started with is read whatever it is: `... | bpfprof report /dev/stdin`.
    """
    is_given = path == _STANDARD_INPUT or descriptor(path) is not None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | (0 if is_given else os.O_NONBLOCK))
        if not is_given and stat.S_IFMT(os.fstat(fd).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            os.close(fd)
            raise RecordingError(f"{path} is not a file", f"bpfprof report /dev/stdin <{path} reads what it is")
        file = os.fdopen(fd, "rb")
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        _check(path, file)
    except BaseException:
        file.close()
        raise
    return file


def _check(path: Path, file: BufferedReader) -> None:
    """Raises RecordingError, which names the file, if it does not begin as one. It is not moved on."""
    begin = file.peek(_LOOKED_AT)
    if begin.startswith(MAGIC):
        return
    if not begin:
        raise RecordingError(f"{path} is empty", "bpfprof record writes while it records: was it stopped at once?")
    if begin.startswith(MAGIC[:-1]) and len(begin) >= len(MAGIC):
        other, own = begin[len(MAGIC) - 1], MAGIC[-1]
        raise RecordingError(
            f"{path} is a recording of format {other}, and this bpfprof reads format {own}",
            "a newer bpfprof made it" if other > own else "the bpfprof that made it can read it",
        )
    text = begin.lower().lstrip()
    what = next((what for beginning, what in _BEGINNINGS if text.startswith(beginning)), "")
    if b"<svg" in text:
        what = "an SVG picture"
    raise RecordingError(f"{path} is {what}, not a recording" if what else f"{path} is not a recording", _HOW)


def unreadable(path: Path, error: OSError) -> RecordingError:
    """What is said of a file that could not be opened or read."""
    said = f"{path} cannot be read: "
    if not isinstance(error, PermissionError):
        return RecordingError(said + str(error.strerror))
    try:
        owner = path.stat().st_uid
    except OSError:
        return RecordingError(said + "its folder does not let you")
    if owner == os.geteuid():
        return RecordingError(said + "its mode does not let you", f"chmod u+r {path}")
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"user {owner}"
    return RecordingError(said + f"it belongs to {name}", f"sudo chown $USER {path}")
