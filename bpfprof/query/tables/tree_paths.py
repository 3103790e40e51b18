"""Stacks -> the steps that a tree of calls shows of them: the user's own code, and where it calls what is not.

Native start-up code and the interpreter are no steps. Library code that leads to the user's own is one, without a name.
Of library code that it calls the first function is a step, which stands for the calls that follow; on a CPU also the
first one of the native library that the CPU was in.
"""

from __future__ import annotations

from collections.abc import Sequence

from bpfprof.dataclass import dataclass
from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.query.code.functions import function_of_frames
from bpfprof.query.code.origins import INTERPRETER, STDLIB, Origin, origins
from bpfprof.query.code.stack_frames import OWN_RANK, StackFrames

FOLDED = -1  # key of the step of library code that leads to the user's own
_LIBRARY_RANK = 3  # in StackFrames.nearness: from there on it is a library, below the runtime and the kernel
_LEAVES = (FrameKind.WAIT, FrameKind.RUNQUEUE, FrameKind.AWAIT)
_NATIVE = (FrameKind.NATIVE, FrameKind.INLINED)


@dataclass(frozen=True)
class Step:
    """key: the function, a place in Profile.frames, or FOLDED. frame: with its line, -1 of FOLDED.

    folded: how many frames it stands for beside itself; libraries: whose they are.
    """

    key: int
    frame: int
    folded: int = 0
    libraries: tuple[str, ...] = ()


class TreePaths:
    """The steps of the stacks of one profile. unfolded: each frame is a step."""

    def __init__(self, profile: Profile, stack_frames: StackFrames, unfolded: bool = False) -> None:
        self._profile, self._unfolded = profile, unfolded
        self._kinds = [frame.kind for frame in profile.frames]
        self._functions = function_of_frames(profile.frames).tolist()
        self._ranks = stack_frames.nearness.tolist()
        self._has_own = OWN_RANK in self._ranks
        self._nearest = stack_frames.own_code().tolist()
        self._names = [_name(origin) for origin in origins(profile.frames)]
        self._known: dict[tuple[int, bool], tuple[Step, ...]] = {}

    def of(self, stack: int, on_cpu: bool) -> tuple[Step, ...]:
        """Outermost first; a function that calls itself is one."""
        key = stack, on_cpu
        if key not in self._known:
            steps: list[Step] = []
            for step in self._steps(stack, on_cpu):
                if not steps or steps[-1].key != step.key:
                    steps.append(step)
            self._known[key] = tuple(steps)
        return self._known[key]

    def is_own(self, frame: int) -> bool:
        """Whether it is the user's own code."""
        return bool(self._ranks[frame] == OWN_RANK)

    def _steps(self, stack: int, on_cpu: bool) -> list[Step]:
        kinds = self._kinds
        frames = [frame for frame in self._profile.stacks[stack] if kinds[frame] not in _LEAVES]
        if self._unfolded:
            return [self._step(frame) for frame in frames]
        is_mark = [self._ranks[frame] == 0 and kinds[frame] != FrameKind.KERNEL for frame in frames]
        steps = [self._step(frame) for frame, mark in zip(frames, is_mark) if mark]
        frames = [frame for frame, mark in zip(frames, is_mark) if not mark]
        shown = self._shown(stack, frames)
        if not shown:
            return steps + self._called(frames, on_cpu)
        steps += self._led(frames[: shown[0]])
        for place, following in zip(shown, [*shown[1:], len(frames)]):
            steps.append(self._step(frames[place]))
            steps += self._called(frames[place + 1 : following], on_cpu and following == len(frames))
        return steps

    def _shown(self, stack: int, frames: Sequence[int]) -> list[int]:
        """Places of the user's own code; without it of what is nearest to it."""
        best = max((self._ranks[frame] for frame in frames), default=0)
        if best < OWN_RANK and self._has_own:
            nearest = [place for place, frame in enumerate(frames) if frame == self._nearest[stack]]
            return nearest[-1:]
        return [place for place, frame in enumerate(frames) if self._ranks[frame] == best] if best else []

    def _step(self, frame: int, after: Sequence[int] = ()) -> Step:
        return Step(self._functions[frame], frame, len(after), self._libraries(after))

    def _led(self, frames: Sequence[int]) -> list[Step]:
        """Of what leads to the first that is shown."""
        if not any(self._ranks[frame] >= _LIBRARY_RANK for frame in frames):
            return []
        return [Step(FOLDED, -1, len(frames), self._libraries(frames))]

    def _called(self, frames: Sequence[int], on_cpu: bool) -> list[Step]:
        """Of what one that is shown calls, up to the next of them or the leaf."""
        kinds = [self._kinds[frame] for frame in frames]
        entries = [place for place, frame in enumerate(frames) if self._ranks[frame] >= _LIBRARY_RANK]
        if not entries:
            entries = [place for place, kind in enumerate(kinds) if kind in _NATIVE][:1] if on_cpu else []
        if not entries:
            return []
        first, last = entries[0], entries[-1]
        library = self._names[frames[last]]
        if not on_cpu or kinds[last] not in _NATIVE or library == self._names[frames[first]]:
            return [self._step(frames[first], frames[first + 1 :])]
        while last - 1 > first and self._names[frames[last - 1]] == library:
            last -= 1
        return [
            self._step(frames[first], frames[first + 1 : last]),
            self._step(frames[last], frames[last + 1 :]),
        ]

    def _libraries(self, frames: Sequence[int]) -> tuple[str, ...]:
        """Each once, in the order of the calls; the runtime only where there is nothing else."""
        of_libraries = [self._names[frame] for frame in frames if self._ranks[frame] >= _LIBRARY_RANK]
        return tuple(dict.fromkeys(of_libraries or [self._names[frame] for frame in frames]))


def _name(origin: Origin) -> str:
    """`threading` of the standard library, `numpy` of others, `libc.so.6`."""
    if origin.library == STDLIB:
        return origin.module.partition(".")[0]
    return "CPython" if origin.library == INTERPRETER else origin.library
