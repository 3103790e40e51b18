"""Files of a profile's Python frames -> their text, where it can be read here and is what was recorded."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from bpfprof.proc.caller import caller_ids, files_as

_MAX_FILES = 60
_MAX_FILE_BYTES = 1 << 20
_MAX_ALL_BYTES = 4 << 20
_SUFFIXES = (".py", ".pyw", ".pyx")  # a recording may come from a stranger: no other file of the reader is taken


def read_sources(paths: Iterable[str], started_unix_ns: int) -> dict[str, tuple[str, str]]:
    """Path -> (text, why there is none). Paths that matter most come first.

    Files are opened as the user who called sudo may. Of a file that was changed since, the lines are others.
    """
    found: dict[str, tuple[str, str]] = {}
    left = _MAX_ALL_BYTES
    with files_as(caller_ids()):
        for path in paths:
            if len(found) >= _MAX_FILES:
                break
            text, why = _read(path, started_unix_ns, left)
            left -= len(text)
            found[path] = (text, why)
    return found


def _read(path: str, started_unix_ns: int, left: int) -> tuple[str, str]:
    if not path.startswith("/") or not path.endswith(_SUFFIXES) or "\0" in path:
        return "", "its path is not that of a Python file"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, UnicodeError) as error:
        return "", f"it could not be read here: {getattr(error, 'strerror', '') or 'its name is no text'}"
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return "", "it is no regular file"
        if status.st_size > min(_MAX_FILE_BYTES, left):
            return "", "it is too large, or others were"
        if started_unix_ns and status.st_mtime_ns > started_unix_ns:
            return "", "it was changed after the recording began"
        try:
            return file.read(_MAX_FILE_BYTES).decode("utf-8", "replace"), ""
        except OSError as error:
            return "", f"it could not be read here: {error.strerror}"
