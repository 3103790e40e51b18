"""Frames and stacks of a profile, each once, numbered as they are met."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind, mark
from bpfprof.model.grouping import group_numbers
from bpfprof.model.profile import Interner
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_text
from bpfprof.model.statuses import Status
from bpfprof.stacks.stitch import StackSource

_MARKS = {Status.SHORT_WAIT: Frame(FrameKind.SHORT_WAITS), Status.NOT_SAMPLED: Frame(FrameKind.NOT_SAMPLED)}


def span_keys(spans: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """What tells the stack that a span shows from others: stack << 32 | reason << 16 | status << 8 | state."""
    reasons = np.where(spans["state"] == ThreadState.OFF_CPU, spans["reason"], 0).astype(np.uint64)
    keys = spans["stack"].astype(np.uint64) << np.uint64(32) | reasons << np.uint64(16)
    return np.asarray(keys | spans["status"].astype(np.uint64) << np.uint64(8) | spans["state"].astype(np.uint64))


@dataclass
class ProfileStacks:
    """Stacks of the recording with their marks, as the profile numbers them."""

    source: StackSource
    interner: Interner = field(default_factory=Interner)
    _number_of_key: dict[int, int] = field(default_factory=dict)
    _last: tuple[int, tuple[Frame, ...]] = 0, ()  # keys of one stack follow one another

    def __post_init__(self) -> None:
        self._places = np.zeros(len(self.source.statuses), np.uint32)  # of each stack that was asked for, see places()

    def number(self, key: int) -> int:
        """The profile's stack for a key of span_keys()."""
        if key not in self._number_of_key:
            self._number_of_key[key] = self._add(key >> 32, key >> 16 & 0xFFFF, key >> 8 & 0xFF, key & 0xFF)
        return self._number_of_key[key]

    def numbers(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
        """The same for many keys."""
        first, number_of_row = group_numbers([keys])
        each = keys[first].tolist()
        found = list(map(self._number_of_key.get, each))
        if None in found:
            found = [self.number(key) if number is None else number for key, number in zip(each, found)]
        return np.array(found, np.uint32)[number_of_row]

    def places(self, stacks: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Of stacks of the recording without a leaf mark: the profile's number + 1; 0 where there is none."""
        unknown = np.unique(stacks[(self._places[stacks] == 0) & (stacks > 0)])
        statuses = self.source.statuses[unknown].astype(np.uint64)
        self._places[unknown] = self.numbers(unknown.astype(np.uint64) << np.uint64(32) | statuses << np.uint64(8)) + 1
        return self._places[stacks]

    def _add(self, stack: int, reason: int, status: int, state: int) -> int:
        frames: tuple[Frame, ...] = ()
        if not stack and status in _MARKS:
            frames = (_MARKS[Status(status)],)
        elif stack and stack == self._last[0]:
            frames = self._last[1]
        elif stack or status != Status.NOT_STARTED:
            frames = self.source.frames(stack, status)
            self._last = stack, frames
        if state == ThreadState.RUNQUEUE:
            frames += (mark(FrameKind.RUNQUEUE),)
        elif state == ThreadState.OFF_CPU:
            frames += (mark(FrameKind.WAIT, reason_text(reason)),)
        return self.interner.stack(frames)
