"""Stacks -> the phase of a training step that each is of, by the patterns in phases.txt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.known.patterns import LONGEST, PhasePattern, known_phases
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools, StackFrames

DATA, TO_DEVICE, FORWARD, BACKWARD, OPTIMIZER = "data wait", "host to device", "forward", "backward", "optimizer"
COMMUNICATION, CHECKPOINT, LOG, OTHER = "communication", "checkpoint", "log", "other"
PHASES = (DATA, TO_DEVICE, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, CHECKPOINT, LOG)
_NAMED = (FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.INLINED)


@dataclass(frozen=True)
class StackPhases:
    """names: PHASES, those of the user, and `other` last. of_stack: for each a place in names; is_known: whether it has
    frames that could tell. of_frame: for each the place of what it would tell alone."""

    names: tuple[str, ...]
    of_stack: Ints
    is_known: Bools
    of_frame: Ints


def find_phases(
    frames: Sequence[Frame], stack_frames: StackFrames, patterns: Sequence[PhasePattern] = ()
) -> StackPhases:
    """patterns: the user's, which come before those that are known."""
    names = tuple(dict.fromkeys([*PHASES, *(each.phase for each in patterns if each.phase != OTHER), OTHER]))
    numbers = {name: number for number, name in enumerate(names)}
    ranks, of_frame = np.zeros(len(frames), np.int64), np.full(len(frames) + 1, len(names) - 1, np.int64)
    of_name: dict[tuple[str, str], tuple[int, str]] = {}
    for number, frame in enumerate(frames):
        if frame.kind not in _NAMED:
            continue
        key = frame.name[:LONGEST], frame.file[-LONGEST:]
        if key not in of_name:
            of_name[key] = _phase(*key, patterns)
        ranks[number], name = of_name[key]
        if name:
            of_frame[number] = numbers[name]
    of_stack = of_frame[stack_frames.outermost_of_best(ranks.tolist())]
    return StackPhases(names, of_stack, stack_frames.innermost_python() >= 0, of_frame[:-1])


def _phase(name: str, file: str, asked: Sequence[PhasePattern]) -> tuple[int, str]:
    """(rank, phase) of the user's first pattern that is found, else of the known one of the highest rank; (0, "")."""
    for pattern in asked:
        if pattern.function.search(f"{name} ({file})"):
            return pattern.rank, pattern.phase
    return _known_phase(name, file)


@lru_cache(1 << 12)
def _known_phase(name: str, file: str) -> tuple[int, str]:
    found = [pattern for pattern in _known_of(file) if pattern.function.search(name)]
    best = max(found, key=lambda pattern: pattern.rank, default=None)
    return (best.rank, best.phase) if best else (0, "")


@lru_cache(1 << 10)
def _known_of(file: str) -> tuple[PhasePattern, ...]:
    return tuple(each for each in known_phases() if each.file.search(file))
