"""Stacks of a Profile -> the libraries that own them."""

from __future__ import annotations

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.query.code.origins import is_runtime, origins


def library_groups(profile: Profile) -> tuple[list[int], list[int]]:
    """For each frame the first one of its library, -1: it has none; for each stack that of the library that owns it.

    What the kernel, the interpreter and the C library did is the own time of the library that called them.
    """
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
