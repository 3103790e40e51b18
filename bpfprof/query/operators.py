"""Frames -> the operators of frameworks and libraries that they are, by the patterns in operators.txt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.query.functions import Ints
from bpfprof.query.stack_frames import StackFrames

_LEVELS = ("kernel", "operator", "call", "group")
_OUTERMOST = _LEVELS.index("call") + 1
_NAMED = (FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.INLINED)
_LONGEST = 4096  # letters of a name that patterns are searched in: C++ has names of megabytes


@dataclass(frozen=True)
class Pattern:
    """level: from 1; of the operators of a stack those of the highest count. name: a template of re.Match.expand()."""

    level: int
    file: re.Pattern[str]
    function: re.Pattern[str]
    name: str


@dataclass(frozen=True)
class Operators:
    """of_frame: of each frame its operator, a place in names, -1: none; owner: of each stack the frame of its own."""

    names: list[str]
    of_frame: Ints
    owner: Ints


@cache
def known_patterns() -> tuple[Pattern, ...]:
    """Those of operators.txt."""
    return tuple(
        Pattern(_LEVELS.index(level) + 1, re.compile(file), re.compile(function), name)
        for level, file, function, name in pattern_rows("operators.txt")
    )


def pattern_rows(name: str) -> list[list[str]]:
    """The four columns of a file of patterns in this folder, two blanks or more between them."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return [re.split(r" {2,}", line) for line in text.splitlines() if line and not line.startswith("#")]


def parse_group(text: str) -> Pattern:
    """`NAME=REGEX`, searched in `FUNCTION (FILE)`. Raises ValueError."""
    name, equals, pattern = text.partition("=")
    if not (name and equals and pattern):
        raise ValueError(f"{text!r} is no group; one is written NAME=REGEX")
    try:
        return Pattern(len(_LEVELS), re.compile(""), re.compile(pattern), name.replace("\\", r"\\"))
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error


def find_operators(frames: Sequence[Frame], stack_frames: StackFrames, groups: Sequence[Pattern] = ()) -> Operators:
    """groups: the user's, which come before those that are known."""
    names: dict[str, int] = {}
    of_frame, levels = np.full(len(frames), -1, np.int64), np.zeros(len(frames), np.int64)
    of_file: dict[str, list[Pattern]] = {}
    of_name: dict[tuple[str, str], tuple[int, str]] = {}
    patterns = known_patterns()
    for number, frame in enumerate(frames):
        if frame.kind not in _NAMED:
            continue
        key = frame.name[:_LONGEST], frame.file[-_LONGEST:]
        if key not in of_name:
            if key[1] not in of_file:
                of_file[key[1]] = [pattern for pattern in patterns if pattern.file.search(key[1])]
            of_name[key] = _operator(*key, groups, of_file[key[1]])
        levels[number], name = of_name[key]
        if name:
            of_frame[number] = names.setdefault(name, len(names))
    inner, outer = stack_frames.innermost_of_best(levels.tolist()), stack_frames.outermost_of_best(levels.tolist())
    owner = np.where(np.append(levels, 0)[inner] == _OUTERMOST, outer, inner)
    return Operators([*names], of_frame, owner)


def _operator(name: str, file: str, groups: Sequence[Pattern], known: Sequence[Pattern]) -> tuple[int, str]:
    """(level, name) of the first pattern that is found; (0, "") of none."""
    for pattern in groups:
        if found := pattern.function.search(f"{name} ({file})"):
            return pattern.level, pattern.name
    for pattern in known:
        if found := pattern.function.search(name):
            return pattern.level, found.expand(pattern.name)
    return 0, ""
