"""Files of Python frames -> their text, where it can be read here and is what ran."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable

from bpfprof.model.ids import Pid
from bpfprof.proc.caller import caller_ids, files_as
from bpfprof.proc.reader import reader
from bpfprof.proc.tasks import start_time_ticks

_MAX_FILES = 60
_MAX_FILE_BYTES = 1 << 20
_MAX_ALL_BYTES = 4 << 20
_SUFFIXES = (".py", ".pyw", ".pyx")  # a recording may come from a stranger: no other file of the reader is taken


def read_sources(paths: Iterable[str], started_unix_ns: int, what: str = "the recording") -> dict[str, tuple[str, str]]:
    """Path -> (text, why there is none). Paths that matter most come first.

    Files are opened as the user who called sudo may. Of a file that was changed since `what` began, lines are others.
    """
    found: dict[str, tuple[str, str]] = {}
    left = _MAX_ALL_BYTES
    with files_as(caller_ids()):
        for path in paths:
            if len(found) >= _MAX_FILES:
                break
            text, why = _read(path, started_unix_ns, left, what)
            left -= len(text)
            found[path] = (text, why)
    return found


def sources_now(pid: Pid, paths: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The same of a process that runs; nothing where its paths are those of other folders, as in a container.

    A file whose file system does not answer costs no more than the reader's patience.
    """
    started = start_time_ticks(pid)
    if started is None or not _has_our_folders(pid):
        return {}
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    known = [path for path in paths if _is_python(path)][:_MAX_FILES]
    with contextlib.suppress(OSError):
        return read_sources(filter(_answers, known), time.time_ns() - int(1e9 * age_s), "the process")
    return {}


def _has_our_folders(pid: Pid) -> bool:
    try:
        return all(
            os.readlink(f"/proc/{pid}/{link}") == os.readlink(f"/proc/self/{link}") for link in ("ns/mnt", "root")
        )
    except OSError:
        return False


def _answers(path: str) -> bool:
    try:
        os.close(reader().open_file(Pid(os.getpid()), path))
    except (OSError, UnicodeError):
        return False
    return True


def _is_python(path: str) -> bool:
    return path.startswith("/") and path.endswith(_SUFFIXES) and "\0" not in path


def _read(path: str, started_unix_ns: int, left: int, what: str) -> tuple[str, str]:
    if not _is_python(path):
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
            return "", f"it was changed after {what} began"
        try:
            return file.read(_MAX_FILE_BYTES).decode("utf-8", "replace"), ""
        except OSError as error:
            return "", f"it could not be read here: {error.strerror}"
