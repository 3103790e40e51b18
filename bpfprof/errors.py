"""Errors that end a command: what the user is told, what would help, and the exit code of the contract.

An address or frame that cannot be resolved is not an error: it is a value with a reason, counted in the report.
"""

from __future__ import annotations

import errno
import os

_SHORTAGES = {errno.EMFILE: "ulimit -n 4096", errno.ENFILE: "sysctl fs.file-max=1000000", errno.ENOMEM: ""}


class BpfprofError(Exception):
    """Something the user or the machine can put right; its text is one sentence a user can act on.

    `hint` is the command or step that fixes it (empty if there is none); `details`, such as a compiler's output, are
    shown with --debug; `exit_code` is the process exit code.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "", details: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.details = details


class UsageError(BpfprofError):
    """Options that contradict each other, an unknown format, an output that may not be written."""

    exit_code = 2


class UnsupportedError(BpfprofError):
    """A privilege, a kernel feature or a dependency is missing."""

    exit_code = 3


class TargetError(BpfprofError):
    """There is no such process, or it ended before anything was seen."""

    exit_code = 4


class LaunchError(BpfprofError):
    """A command could not be launched; `exit_code` is the one that shells have for the reason."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class RecordingError(BpfprofError):
    """A recording is unreadable, truncated, or does not add up; what could be read is still shown."""

    exit_code = 5


class RegressionError(BpfprofError):
    """`diff --fail-over` found one."""

    exit_code = 6


class OutputError(BpfprofError):
    """An output could not be written to its end (disk full, I/O error); what was written stays readable."""

    exit_code = 5


def shortage(error: Exception) -> UnsupportedError | None:
    """What is said where no more files or memory are to be had, whatever they were for; None for any other error."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else error.errno if isinstance(error, OSError) else None
    if number not in _SHORTAGES:
        return None
    name = getattr(error, "filename", None)
    return UnsupportedError(os.strerror(number).lower() + f", for {name}" * bool(name), _SHORTAGES[number])
