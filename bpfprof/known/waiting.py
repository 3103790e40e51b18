"""Functions of libraries that wait for a device, for other threads or ranks, or hand work to a device: waiting.txt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from bpfprof.dataclass import dataclass

KINDS = ("sync", "query", "upload", "download", "copy", "memory", "launch", "spin", "spin-own", "work")
SYNC, QUERY, UPLOAD, DOWNLOAD, COPY, MEMORY, LAUNCH, SPIN, SPIN_OWN, WORK = range(1, len(KINDS) + 1)
COPIES = (UPLOAD, DOWNLOAD, COPY)
OF_DEVICE = (SYNC, QUERY, *COPIES, MEMORY)  # time in these is the device's
_LONGEST = 200  # letters of a name that is looked at: those of C++ may have megabytes


@dataclass(frozen=True)
class Waiting:
    """A line of the table. kind: a place in KINDS, from 1."""

    kind: int
    file: re.Pattern[str]
    function: re.Pattern[str]


def parse_waiting(text: str) -> tuple[Waiting, ...]:
    """Raises ValueError, with the number of the line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        kind, file, function = [*re.split(r" {2,}", line.strip()), "", ""][:3]
        if kind not in KINDS or not function:
            raise ValueError(f"line {number}: one is written KIND  FILE  FUNCTION, KIND one of {', '.join(KINDS)}")
        try:
            found.append(Waiting(KINDS.index(kind) + 1, re.compile(file), re.compile(function)))
        except re.error as error:
            raise ValueError(f"line {number}: {error}") from error
    return tuple(found)


@cache
def known_waiting() -> tuple[Waiting, ...]:
    """Those of waiting.txt."""
    from importlib import resources

    return parse_waiting(resources.files(__package__).joinpath("waiting.txt").read_text(encoding="utf-8"))


_of_user: list[Waiting] = []


def add_waiting(lines: Iterable[Waiting]) -> None:
    """From now on these come before those of waiting.txt."""
    _of_user[:0] = lines
    _lines_of.cache_clear()
    kind_of.cache_clear()


@cache
def _any_of(lines: tuple[Waiting, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{line.function.pattern})" for line in lines) or "(?!)")


@lru_cache(1 << 10)
def _lines_of(file: str) -> tuple[Waiting, ...]:
    return tuple(line for line in (*_of_user, *known_waiting()) if line.file.match(file))


@lru_cache(1 << 16)
def kind_of(function: str, path: str) -> int:
    """A place in KINDS, from 1; 0: nothing is known of a native function of this name in this file."""
    name, lines = function[:_LONGEST], _lines_of(path.rpartition("/")[2][:_LONGEST])
    if not _any_of(lines).fullmatch(name):
        return 0
    return next(line.kind for line in lines if line.function.fullmatch(name))


def waits_for_device(function: str, path: str = "") -> bool:
    """Whether a native function of this name waits for a device: on a CPU as well as asleep."""
    return kind_of(function, path or "lib") in OF_DEVICE
