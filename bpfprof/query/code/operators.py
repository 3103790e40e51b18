"""Frames -> the operators of frameworks and libraries that they are, by the patterns in operators.txt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.known.patterns import LEVELS, LONGEST, Pattern, known_patterns
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import StackFrames

_OUTERMOST = LEVELS.index("call") + 1
_NAMED = (FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.INLINED)


@dataclass(frozen=True)
class Operators:
    """of_frame: for each frame its operator, a place in names, -1: none; owner: for each stack the frame of its own."""

    names: list[str]
    of_frame: Ints
    owner: Ints


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
        key = frame.name[:LONGEST], frame.file[-LONGEST:]
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
