"""Patterns that tell operators and phases by their functions: those of operators.txt and phases.txt, and the user's."""

from __future__ import annotations

import re
from functools import cache

from bpfprof.dataclass import dataclass

LEVELS = ("kernel", "operator", "call", "group")
LONGEST = 4096  # letters of a name that patterns are searched in: C++ has names of megabytes
_OF_THE_USER = 9  # rank of patterns of phases that come with an option


@dataclass(frozen=True)
class Pattern:
    """level: from 1; of the operators of a stack those of the highest count. name: a template of re.Match.expand()."""

    level: int
    file: re.Pattern[str]
    function: re.Pattern[str]
    name: str


@dataclass(frozen=True)
class PhasePattern:
    """rank: of the frames of a stack that of the highest tells its phase."""

    rank: int
    phase: str
    file: re.Pattern[str]
    function: re.Pattern[str]


@cache
def known_patterns() -> tuple[Pattern, ...]:
    """Those of operators.txt."""
    return tuple(
        Pattern(LEVELS.index(level) + 1, re.compile(file), re.compile(function), name)
        for level, file, function, name in _rows("operators.txt")
    )


@cache
def known_phases() -> tuple[PhasePattern, ...]:
    """Those of phases.txt."""
    return tuple(
        PhasePattern(int(rank), phase, re.compile(file), re.compile(function))
        for rank, phase, file, function in _rows("phases.txt")
    )


def _rows(name: str) -> list[list[str]]:
    """The four columns of a file of patterns in this folder, two blanks or more between them."""
    from importlib import resources

    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return [re.split(r" {2,}", line) for line in text.splitlines() if line and not line.startswith("#")]


def parse_group(text: str) -> Pattern:
    """`NAME=REGEX`, searched in `FUNCTION (FILE)`. Raises ValueError."""
    name, equals, pattern = text.partition("=")
    if not (name and equals and pattern):
        raise ValueError(f"{text!r} is no group; one is written NAME=REGEX")
    return Pattern(len(LEVELS), re.compile(""), _compiled(pattern), name.replace("\\", r"\\"))


def parse_phase(text: str) -> PhasePattern:
    """`NAME=REGEX`, searched in `FUNCTION (FILE)`; NAME is one of phases.PHASES or any other. Raises ValueError."""
    name, equals, pattern = text.partition("=")
    if not (name.strip() and equals and pattern):
        raise ValueError(f"{text!r} is no phase; one is written NAME=REGEX")
    return PhasePattern(_OF_THE_USER, name.strip(), re.compile(""), _compiled(pattern))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
