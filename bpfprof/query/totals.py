"""Profile -> time by what frames have in common: on its own, and with all that it called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.query.functions import function_of_frames, owner_frames
from bpfprof.query.origins import is_runtime, origins

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Totals:
    """Of one group its nanoseconds; `frame` is one of it, by its place in Profile.frames.

    own: in stacks that end in it; total: in stacks that have it anywhere.
    """

    frame: int
    cpu_own_ns: int = 0
    cpu_total_ns: int = 0
    wait_own_ns: int = 0
    wait_total_ns: int = 0


def by_function(profile: Profile) -> list[Totals]:
    """Functions, lines merged. What native code did is the own time of the Python function that called it."""
    functions = np.append(function_of_frames(profile.frames), -1)
    owners = functions[owner_frames(profile.frames, profile.stacks)]
    return _totals(profile, functions[:-1].tolist(), owners.tolist())


def by_library(profile: Profile) -> list[Totals]:
    """What the kernel, the interpreter and the C library did is the own time of the library that called them."""
    return _totals(profile, *library_groups(profile))


def library_groups(profile: Profile) -> tuple[list[int], list[int]]:
    """Of each frame the first one of its library, -1: it has none; of each stack that of the library that owns it."""
    libraries = [origin.library for origin in origins(profile.frames)]
    first: dict[str, int] = {}
    groups = [first.setdefault(library, frame) if library else -1 for frame, library in enumerate(libraries)]
    ranks = [_rank(frame, library) for frame, library in zip(profile.frames, libraries)]
    # The innermost of the best rank: max() returns the first.
    owners = [max(reversed(stack), key=ranks.__getitem__, default=-1) for stack in profile.stacks]
    return groups, [groups[frame] if frame >= 0 else -1 for frame in owners]


def _rank(frame: Frame, library: str) -> int:
    if not library:
        return 0
    if frame.kind == FrameKind.KERNEL:
        return 1
    return 2 if is_runtime(library) else 3


def _totals(profile: Profile, groups: Sequence[int], owners: Sequence[int]) -> list[Totals]:
    """Groups with most own time first. groups: of each frame; owners: of each stack; -1: none."""
    by_state = np.zeros((2, len(profile.stacks)), np.int64)
    for row, state in enumerate((ThreadState.ON_CPU, ThreadState.OFF_CPU)):
        weights = profile.weights[profile.weights["state"] == state]
        np.add.at(by_state[row], weights["stack"], weights["total_ns"].astype(np.int64))
    sums = np.zeros((len(profile.frames), 4), np.int64)
    for stack, (owner, (cpu_ns, wait_ns)) in enumerate(zip(owners, by_state.T.tolist())):
        if owner >= 0:
            sums[owner, ::2] += cpu_ns, wait_ns
        for group in {groups[frame] for frame in profile.stacks[stack]} - {-1}:
            sums[group, 1::2] += cpu_ns, wait_ns
    order = np.lexsort((-sums[:, 1] - sums[:, 3], -sums[:, 2], -sums[:, 0]))
    return [Totals(frame, *sums[frame].tolist()) for frame in order.tolist() if sums[frame].any()]
