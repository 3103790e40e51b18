"""Profiles of two sides -> paths of calls with the time of both: for a picture of what `differences()` tells in rows.

Time is that of slices.py: on a CPU and in waits of threads that have something to do, of a second of work or of a run.
Threads are no level: their numbers, and often how many there are, differ from recording to recording.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame
from bpfprof.model.profile import Profile
from bpfprof.model.rows import picked
from bpfprof.query.compare.differences import same_files
from bpfprof.query.compare.slices import Key, frame_key, working_spans

Step = tuple[str, str, int]  # a Key; of a mark its name alone
Path = tuple[Step, ...]


@dataclass
class SideTree:
    """Nanoseconds by path, root first, of all recordings of a side. frames: what is behind each step."""

    paths: dict[Path, float] = field(default_factory=dict)
    frames: dict[Step, Frame] = field(default_factory=dict)
    work_ns: float = 0.0
    runs: int = 0

    def add(self, profile: Profile, by: str) -> None:
        """by: function or line."""
        spans, work_ns = working_spans(profile)
        shown = spans["stands_for_ns"] > 0
        spans = picked(spans, shown)
        steps = [_step(frame, by) for frame in profile.frames]
        stacks, which = np.unique(spans["stack"], return_inverse=True)
        ns = np.bincount(which, spans["stands_for_ns"].astype(np.float64), len(stacks))
        for stack, of_stack in zip(stacks.tolist(), ns.tolist()):
            frames = profile.stacks[stack]
            path = tuple(steps[frame] for frame in frames)
            self.paths[path] = self.paths.get(path, 0.0) + of_stack
            for frame in frames:
                self.frames.setdefault(steps[frame], profile.frames[frame])
        self.work_ns += work_ns
        self.runs += 1


@dataclass(frozen=True)
class DiffPaths:
    """Each path with nanoseconds before and after, of a second of work or of a run."""

    rows: list[tuple[Path, float, float]]
    frames: dict[Step, Frame]


def both_sides(before: SideTree, after: SideTree, is_per_run: bool) -> DiffPaths:
    """Files that are copies in another folder are one, as in differences()."""
    renamed = same_files({file for _, file, _ in before.frames}, {file for _, file, _ in after.frames})

    def known(step: Step) -> Step:
        return step[0], renamed.get(step[1], step[1]), step[2]

    times: dict[Path, list[float]] = {}
    for place, (side, name) in enumerate(((before, lambda step: step), (after, known))):
        rename: Callable[[Step], Step] = name
        unit = side.runs if is_per_run else side.work_ns / 1e9
        for path, ns in side.paths.items():
            times.setdefault(tuple(map(rename, path)), [0.0, 0.0])[place] += ns / max(unit, 1e-9)
    frames = {known(step): replace(frame, file=known(step)[1] or frame.file) for step, frame in after.frames.items()}
    frames |= before.frames
    return DiffPaths([(path, one, other) for path, (one, other) in times.items()], frames)


def _step(frame: Frame, by: str) -> Step:
    key: Key | None = frame_key(frame, by)
    return key if key is not None else (f"{int(frame.kind)} {frame.name}", "", 0)
