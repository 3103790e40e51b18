"""Standard output, and files written for the user: never through a link or into what is no file, and the user's own."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from bpfprof.errors import OutputError, UsageError, shortage
from bpfprof.proc.caller import files_as
from bpfprof.proc.text import printable_lines
from bpfprof.render.formats import FORMATS, find_format

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


STANDARD_OUTPUT = Path("-")  # as a name of an output
# Names of what this process has open already, as `-o >(gzip >x)` of a shell gives them.
_DESCRIPTOR = re.compile(r"/(?:dev/(?:fd/(\d{1,5})|stdout|stderr)|proc/self/fd/(\d{1,5}))")
_IN_FOLDERS = {form.in_folder for form in FORMATS if form.in_folder}
_KERNELS = ("/proc/", "/sys/")
_NUMBERS = {"/dev/stdout": 1, "/dev/stderr": 2}
# What opens the file of a format, by its name, with its path; of others it is `less`.
NEXT_STEPS = {
    "flamegraph": "open {0} in a browser",
    "html": "open {0} in a browser",
    "speedscope": "open {0} at https://www.speedscope.app, or with: npx speedscope {0}",
    "chrome": "open {0} at https://ui.perfetto.dev",
    "gecko": "open {0} at https://profiler.firefox.com",
    "parquet": "duckdb -c \"SELECT function, sum(ns) / 1e9 FROM '{0}' GROUP BY 1 ORDER BY 2 DESC\"",
    "pprof": "go tool pprof -http : {0}",
    "pstats": "python3 -m pstats {0}, or with: snakeviz {0}",
}


class _StandardOutput(io.FileIO):
    """Who reads only the beginning (`head`) has had enough: the rest goes nowhere, as does what follows an error."""

    has_ended = False
    called = "standard output"

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            if not self.has_ended:
                return super().write(data)
        except BrokenPipeError:
            self.has_ended = True
        except OSError as error:
            self.has_ended = True
            raise OutputError(f"{self.called} could not be written: {error.strerror}") from error
        return len(memoryview(data))


class _StandardError(io.FileIO):
    """A terminal that is gone (SIGHUP) is told nothing any more; what was begun is still done."""

    def write(self, data: ReadableBuffer, /) -> int:
        with contextlib.suppress(OSError):
            return super().write(data)
        return len(memoryview(data))


def guard_standard_output() -> None:
    """Lets sys.stdout raise OutputError, and show a question mark for what its encoding cannot express."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it stays open
    said = io.BufferedWriter(_StandardError(sys.stderr.fileno(), "w", closefd=False))
    sys.stderr = io.TextIOWrapper(said, sys.stderr.encoding, "backslashreplace", line_buffering=True)
    # A closed one cannot be written, like a file that is open to be read; the next file that is opened has its number.
    fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if sys.stdout is None else sys.stdout.fileno()
    encoding = "utf-8" if sys.stdout is None else sys.stdout.encoding
    buffer = io.BufferedWriter(_StandardOutput(fd, "w", closefd=False))
    sys.stdout = io.TextIOWrapper(buffer, encoding, "replace", line_buffering=os.isatty(fd))


def descriptor(path: Path | None) -> int | None:
    """Of an output that is no file to be made: standard output, or another one that bpfprof was started with."""
    name = str(path)
    if path == STANDARD_OUTPUT:
        return 1
    found = _DESCRIPTOR.fullmatch(name)
    return None if found is None else _NUMBERS.get(name) or int(found[1] or found[2])


def open_stream(path: Path | None) -> BinaryIO | None:
    """Writes to a descriptor that bpfprof was started with; None where `path` is that of a file.

    Programs that are started later do not get it. Raises UsageError when it was not given one, or may only read it.
    """
    number = descriptor(path)
    if number is None:
        return None
    if number == 1:
        sys.stdout.flush()
        return io.BufferedWriter(_StandardOutput(sys.stdout.fileno(), "w", closefd=False))
    try:
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
        is_own = fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC  # as all are that were opened here
    except OSError:
        is_own, flags = 1, 0
    if is_own:
        raise UsageError(
            f"{path} cannot be written: bpfprof was not given it", "sudo closes all but three: use -o - and a pipe"
        )
    if flags & os.O_ACCMODE == os.O_RDONLY:
        raise UsageError(f"{path} cannot be written: it is open to be read")
    raw = _StandardOutput(fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3), "w")
    raw.called = str(path)
    if number > 2:
        os.set_inheritable(number, False)  # who reads it waits for the end of all who have it
    return io.BufferedWriter(raw)


def is_read() -> bool:
    """Whether what is written to standard output still goes anywhere."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return not (isinstance(raw, _StandardOutput) and raw.has_ended)


def check_not_spilled(format_name: str, output: Path | None) -> None:
    """Raises UsageError where a file for another program would go to a terminal."""
    found = find_format(format_name)
    if found is not None and found.name in NEXT_STEPS:
        check_no_terminal(f"the format {found.name} is", output, found.suffixes[0])


def check_no_terminal(what: str, output: Path | None, suffix: str = "") -> None:
    """Raises UsageError where it would go to a terminal."""
    if (output is None or descriptor(output) == 1) and sys.stdout.isatty():
        raise UsageError(f"{what} not for a terminal", f"give a file: --output FILE{suffix}")


def show(content: str | bytes) -> None:
    """Writes to standard output: text in its own encoding."""
    if isinstance(content, bytes):
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
    else:
        sys.stdout.write(content)
    sys.stdout.flush()


def tell(text: str) -> None:
    """Writes lines to standard error, in which may be words of a file, of a target or of the command line."""
    print(printable_lines(text), file=sys.stderr)


def shows_utf8() -> bool:
    """Whether standard output can show more than ASCII."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def open_output(path: Path, caller: tuple[int, int] | None, empty: bool = True, mode: int = 0o644) -> int:
    """Descriptor of a regular file at `path`, readable too, made empty; opened as `caller` (uid, gid) if given.

    As long as it is open no other bpfprof writes it. mode: of a new file; 0o600 closes one of the caller's own that was
    there to others, too. Raises UsageError for a link, a FIFO, a directory, a device, one that another bpfprof writes,
    or what the caller may not write; for another user's file in a folder that more than its owner may write, or that is
    open to others where `mode` is not.
    """
    if path.name in _IN_FOLDERS and not path.parent.exists():
        with contextlib.suppress(OSError), files_as(caller):  # the open says what is wrong
            os.mkdir(path.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with files_as(caller):
            fd = os.open(path, flags, mode)
    except OSError as error:
        if shortage(error):
            raise
        why = "it is a symbolic link" if path.is_symlink() else error.strerror
        raise UsageError(f"{path} cannot be written: {why}") from error
    try:
        status = os.fstat(fd)
        _check(path, status, caller, mode)
        _keep_others_out(fd, path)
        if not mode & 0o077 and status.st_mode & 0o077 and status.st_uid in _own_ids(caller):
            with files_as(caller):
                os.fchmod(fd, status.st_mode & 0o700)
        if empty:
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def has_name(path: Path, fd: int, caller: tuple[int, int] | None) -> bool:
    """Whether the file that is open still has that name."""
    opened = os.fstat(fd)
    try:
        with files_as(caller):
            named = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def remove_output(path: Path, fd: int, caller: tuple[int, int] | None) -> None:
    """Removes the file that is open, if it still has that name."""
    if has_name(path, fd, caller):
        with contextlib.suppress(OSError), files_as(caller):
            os.unlink(path)


def _keep_others_out(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"{path} is being written by another process") from None
    except OSError:  # not every file system has locks
        return


def _own_ids(caller: tuple[int, int] | None) -> set[int]:
    return {os.geteuid(), *(caller or ())[:1]}


def _check(path: Path, status: os.stat_result, caller: tuple[int, int] | None, mode: int) -> None:
    # Files of the kernel look regular, and take part of what is written.
    if not stat.S_ISREG(status.st_mode) or os.path.realpath(path).startswith(_KERNELS):
        raise UsageError(f"{path} is not a regular file", f"-o - >{path} writes to what it is")
    if status.st_uid in _own_ids(caller):
        return
    folder = os.stat(path.parent)
    if folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"{path} belongs to another user")
    if not mode & 0o077 and status.st_mode & 0o077:
        raise UsageError(f"{path} belongs to another user, and is open to more than its owner")


def open_temporary() -> int:
    """Descriptor of a file without a name, on disk."""
    try:
        return os.open(os.environ.get("TMPDIR") or "/var/tmp", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError:  # not every file system can, and TMPDIR may name none
        import tempfile

        fd, name = tempfile.mkstemp()
        os.unlink(name)
        return fd


def write_output(path: Path, content: str | bytes, caller: tuple[int, int] | None) -> None:
    """Writes a whole report. Raises OutputError when the disk is full; no half report is left then."""
    stream = open_stream(path)
    if stream is not None:
        with stream:
            stream.write(encoded(content))
        return
    fd = open_output(path, caller)
    try:
        write_whole(fd, path, content, caller)
    finally:
        os.close(fd)


def write_whole(fd: int, path: Path, content: str | bytes, caller: tuple[int, int] | None) -> None:
    """Makes `content` all that is in the file at `path`, open as `fd`. Errors are as for write_output()."""
    data = memoryview(encoded(content))
    os.ftruncate(fd, 0)
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError as error:
        remove_output(path, fd, caller)
        raise OutputError(f"{path} could not be written: {error.strerror}", "free some space") from error


def encoded(content: str | bytes) -> bytes:
    """As files have it."""
    return content if isinstance(content, bytes) else content.encode("utf-8", "replace")
