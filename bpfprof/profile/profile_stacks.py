"""Stacks of a profile: those of the recording with their marks, numbered as they are met."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bpfprof.account.lent_stacks import NOT_SAMPLED
from bpfprof.account.pieces import LEAF_NONE, LEAF_RUNQUEUE, LEAF_WAIT, NOT_SAMPLED_STACK, SHORT_STACK
from bpfprof.account.reasons import reason_text
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.statuses import Status
from bpfprof.recording.reader import Recording
from bpfprof.stacks.stitch import StackSource

NOT_STARTED = int(Status.NOT_STARTED)
_MARKS = {SHORT_STACK: Frame(FrameKind.SHORT_WAITS), NOT_SAMPLED_STACK: Frame(FrameKind.NOT_SAMPLED)}


@dataclass(slots=True)
class ProfileStacks:
    """`frames` and `stacks` are those of the profile; equal ones are there once."""

    source: StackSource
    frames: list[Frame] = field(default_factory=list)
    stacks: list[tuple[int, ...]] = field(default_factory=list)
    _numbers_of_key: dict[int, int] = field(default_factory=dict)
    _frame_numbers: dict[Frame, int] = field(default_factory=dict)
    _stack_numbers: dict[tuple[int, ...], int] = field(default_factory=dict)

    def number(self, key: int) -> int:
        """The profile's stack for a key of piece_keys()."""
        key >>= 8  # the state makes no difference
        if key not in self._numbers_of_key:
            self._numbers_of_key[key] = self._add(key >> 24, key >> 8 & 0xFFFF, key & 0xFF)
        return self._numbers_of_key[key]

    @property
    def empty(self) -> int:
        """The profile's stack without a frame."""
        return self.number(LEAF_NONE << 16 | NOT_STARTED << 8)

    def numbers(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
        """The same for many keys."""
        unique, inverse = np.unique(keys, return_inverse=True)
        return np.array([self.number(key) for key in unique.tolist()], np.uint32)[inverse]

    def places(self, stacks: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Of stacks of the recording without a leaf mark: the profile's number + 1; 0 where there is none."""
        places = np.zeros(len(self.source.statuses), np.uint32)
        places[stacks] = 1
        places[0] = 0
        for stack in np.flatnonzero(places).tolist():
            status = int(self.source.statuses[stack])
            places[stack] = self.number(stack << 32 | LEAF_NONE << 16 | status << 8) + 1
        return np.asarray(places[stacks])

    def _add(self, stack: int, leaf: int, status: int) -> int:
        frames: tuple[Frame, ...] = ()
        if status == NOT_SAMPLED:  # it has a lent stack, or none
            stack, status = stack or NOT_SAMPLED_STACK, int(self.source.statuses[stack])
        if stack in _MARKS:
            frames = (_MARKS[stack],)
        elif status != NOT_STARTED or stack:
            frames = self.source.frames(stack, status)
        if leaf == LEAF_RUNQUEUE:
            frames += (Frame(FrameKind.RUNQUEUE),)
        elif leaf >= LEAF_WAIT:
            frames += (Frame(FrameKind.WAIT, reason_text(leaf - LEAF_WAIT)),)
        numbers = tuple(self._frame_number(frame) for frame in frames)
        if numbers not in self._stack_numbers:
            self._stack_numbers[numbers] = len(self.stacks)
            self.stacks.append(numbers)
        return self._stack_numbers[numbers]

    def _frame_number(self, frame: Frame) -> int:
        if frame not in self._frame_numbers:
            self._frame_numbers[frame] = len(self.frames)
            self.frames.append(frame)
        return self._frame_numbers[frame]


def function_paths(recording: Recording) -> npt.NDArray[np.int64]:
    """A number for each stack (0: no stack), the same for stacks that differ in lines only."""
    codes = recording.python_frames["code"]
    ends = np.cumsum(recording.stacks["python_count"], dtype=np.int64)
    numbers: dict[bytes, int] = {}
    paths = np.zeros(len(recording.stacks) + 1, np.int64)
    for index, (end, count) in enumerate(zip(ends.tolist(), recording.stacks["python_count"].tolist(), strict=True), 1):
        paths[index] = numbers.setdefault(codes[end - count : end].tobytes(), len(numbers) + 1)
    return paths
