"""Functions of libraries that wait for a device, for other threads or ranks, or hand work to a device, and pools of
threads: waiting.txt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from bpfprof.dataclass import dataclass

KINDS = ("sync", "query", "upload", "download", "copy", "memory", "launch", "spin", "spin-own", "work")
SYNC, QUERY, UPLOAD, DOWNLOAD, COPY, MEMORY, LAUNCH, SPIN, SPIN_OWN, WORK = range(1, len(KINDS) + 1)
_POOLS = ("pool", "pool-root")
COPIES = (UPLOAD, DOWNLOAD, COPY)
OF_DEVICE = (SYNC, QUERY, *COPIES, MEMORY)  # time in these is the device's
_LONGEST = 200  # letters of a name that is looked at: those of C++ may have megabytes


@dataclass(frozen=True)
class Waiting:
    """A line of the table for functions that wait. kind: a place in KINDS, from 1."""

    kind: int
    file: re.Pattern[str]
    function: re.Pattern[str]


@dataclass(frozen=True)
class PoolLine:
    """A line of the table for a pool of threads. anywhere: a stack that has one such frame is of the pool; else its
    outermost frame must be one. setting: what sets the number of its threads."""

    name: str
    setting: str
    file: re.Pattern[str]
    function: re.Pattern[str]
    anywhere: bool


def parse_waiting(text: str) -> tuple[Waiting | PoolLine, ...]:
    """Raises ValueError, with the number of the line."""
    found: list[Waiting | PoolLine] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            found.append(_parsed(*[*re.split(r" {2,}", line.strip()), *[""] * 4][:5]))
        except (ValueError, re.error) as error:
            raise ValueError(f"line {number}: {error}") from error
    return tuple(found)


def _parsed(kind: str, file: str, function: str, name: str, setting: str) -> Waiting | PoolLine:
    if kind in _POOLS:
        if not setting:
            raise ValueError(f"one of a pool is written {kind}  FILE  FUNCTION  NAME  SETTING")
        return PoolLine(name, setting, re.compile(file), re.compile(function), kind == _POOLS[0])
    if kind not in KINDS or not function:
        raise ValueError(f"one is written KIND  FILE  FUNCTION, KIND one of {', '.join((*KINDS, *_POOLS))}")
    return Waiting(KINDS.index(kind) + 1, re.compile(file), re.compile(function))


@cache
def known_waiting() -> tuple[Waiting | PoolLine, ...]:
    """The lines of waiting.txt."""
    from importlib import resources

    return parse_waiting(resources.files(__package__).joinpath("waiting.txt").read_text(encoding="utf-8"))


_of_user: list[Waiting | PoolLine] = []


def add_waiting(lines: Iterable[Waiting | PoolLine]) -> None:
    """From now on these come before those of waiting.txt."""
    _of_user[:0] = lines
    for kept in (_lines_of, kind_of, pool_lines, pool_of):
        kept.cache_clear()


@cache
def pool_lines() -> tuple[PoolLine, ...]:
    """The user's first."""
    return tuple(line for line in (*_of_user, *known_waiting()) if isinstance(line, PoolLine))


@lru_cache(1 << 12)  # frames without a name differ in their addresses alone
def pool_of(function: str, path: str) -> int:
    """A place in pool_lines(), the first that a native function of this name in this file fits; -1: none."""
    file, name = path.rpartition("/")[2][:_LONGEST], function[:_LONGEST]
    fit = (
        number for number, line in enumerate(pool_lines()) if line.file.match(file) and line.function.fullmatch(name)
    )
    return next(fit, -1)


@cache
def _any_of(lines: tuple[Waiting, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{line.function.pattern})" for line in lines) or "(?!)")


@lru_cache(1 << 10)
def _lines_of(file: str) -> tuple[Waiting, ...]:
    lines = (line for line in (*_of_user, *known_waiting()) if isinstance(line, Waiting))
    return tuple(line for line in lines if line.file.match(file))


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
