"""A Profile with its waits -> a Profile of nothing but waits, also with the stacks of who ended them.

With wakers a stack goes on after its leaf mark, as that of bcc's offwaketime: a WOKEN_BY frame, the waker's frames leaf
first, and so on with who had woken the waker.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from bpfprof.account.timeline import without_gaps
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import TIMELINE_DTYPE, WEIGHT_DTYPE, Profile, ThreadState, WaitTable
from bpfprof.query.chains import summed, waker_name
from bpfprof.query.functions import Ints
from bpfprof.query.short_weights import is_short_and_blocked
from bpfprof.query.wait_filter import WaitFilter, chosen_rows

_MARKS = (FrameKind.WAIT, FrameKind.RUNQUEUE, FrameKind.NOT_SAMPLED)


def off_cpu_profile(profile: Profile, chosen: WaitFilter, waker_depth: int = 0) -> Profile:
    """The time that threads were blocked in the chosen waits, each with up to `waker_depth` wakers.

    Short waits, which have no stack, are in it if nothing but idle waits is left out. With the timeline of `profile`
    it has one: what is no chosen wait, nor between waits with a row, is an empty stack there. Raises ValueError without
    waits.
    """
    if profile.waits is None:
        raise ValueError("an off-CPU profile is made of one that was built with its waits")
    places = chosen_rows(profile.waits, chosen)
    rows = profile.waits.rows[places]
    stacks = _Stacks(profile, profile.waits)
    stack_of = stacks.with_wakers(places, waker_depth)
    weights = _weights(rows, stack_of)
    if chosen.is_open:
        weights = np.concatenate([weights, profile.weights[is_short_and_blocked(profile)]])
    timeline = None
    if profile.timeline is not None:
        timeline = _timeline(profile, rows, stack_of, stacks.number(()), chosen.is_open)
    return replace(
        profile, frames=tuple(stacks.frames), stacks=tuple(stacks.stacks), weights=weights, timeline=timeline
    )


def _weights(rows: npt.NDArray[np.void], stack_of: Ints) -> npt.NDArray[np.void]:
    """Rows added up by thread and stack, in this order."""
    keys, codes = np.unique(rows["thread"].astype(np.int64) << 32 | stack_of, return_inverse=True)
    weights = np.zeros(len(keys), WEIGHT_DTYPE)
    weights["thread"], weights["stack"], weights["state"] = keys >> 32, keys & 0xFFFFFFFF, ThreadState.OFF_CPU
    weights["count"] = summed(codes, rows["count"], len(keys))
    weights["total_ns"] = summed(codes, rows["total_ns"], len(keys))
    np.maximum.at(weights["max_ns"], codes, rows["blocked_ns"])
    return weights


def _timeline(
    profile: Profile, rows: npt.NDArray[np.void], stack_of: Ints, empty: int, with_others: bool
) -> npt.NDArray[np.void]:
    """The waits and what is between them, without gap from the first to the last moment of each thread.

    with_others: with the waits that have no row, where the timeline of `profile` has them.
    """
    made = np.zeros(len(rows), TIMELINE_DTYPE)
    made["thread"], made["stack"], made["state"] = rows["thread"], stack_of, ThreadState.OFF_CPU
    made["start_ns"], made["duration_ns"] = rows["start_ns"], rows["blocked_ns"]
    if with_others and profile.timeline is not None:
        is_mark = np.array([len(stack) == 1 and profile.frames[stack[0]].kind in _MARKS for stack in profile.stacks])
        others = profile.timeline[profile.timeline["state"] == ThreadState.OFF_CPU]
        made = np.concatenate([made, others[is_mark[others["stack"]]]])
    made = made[np.lexsort((made["start_ns"], made["thread"]))]
    ends = np.searchsorted(made["thread"], np.arange(1, len(profile.threads)))
    parts = zip(profile.threads, np.split(made, ends), strict=False)
    filled = [without_gaps(part, thread, number, empty) for number, (thread, part) in enumerate(parts)]
    return np.concatenate([made[:0], *filled])


@dataclass
class _Stacks:
    """The profile's stacks and those that are made of them."""

    profile: Profile
    table: WaitTable
    frames: list[Frame] = field(init=False)
    stacks: list[tuple[int, ...]] = field(init=False)
    _frame_numbers: dict[Frame, int] = field(init=False)
    _stack_numbers: dict[tuple[int, ...], int] = field(init=False)

    def __post_init__(self) -> None:
        self.frames, self.stacks = list(self.profile.frames), list(self.profile.stacks)
        self._frame_numbers = {frame: number for number, frame in enumerate(self.frames)}
        self._stack_numbers = {stack: number for number, stack in enumerate(self.stacks)}

    def number(self, stack: tuple[int, ...]) -> int:
        """Place of a stack, which is added if it is not there."""
        if stack not in self._stack_numbers:
            self._stack_numbers[stack] = len(self.stacks)
            self.stacks.append(stack)
        return self._stack_numbers[stack]

    def with_wakers(self, places: Ints, depth: int) -> Ints:
        """The stack of each of these waits, continued by its wakers."""
        numbers = self.table.rows["stack"][places].astype(np.int64)
        current = places.copy()  # the wait whose waker comes next; -1: the chain has ended
        for _ in range(depth):
            alive = np.flatnonzero(current >= 0)
            rows = self.table.rows[current[alive]]
            alive, rows = alive[rows["waker"] > 0], rows[rows["waker"] > 0]
            current = np.full(len(places), -1, np.int64)
            if not len(alive):
                break
            numbers[alive] = self._continued(numbers[alive], rows)
            current[alive] = rows["waker_wait"].astype(np.int64) - 1
        return numbers

    def _continued(self, numbers: Ints, rows: npt.NDArray[np.void]) -> Ints:
        """Each stack with the waker of its row after it; equal ones are made once."""
        stackless = rows["waker_stack"].astype(np.int64)
        by = np.unique(rows["waker"].astype(np.int64) << 32 | stackless, return_inverse=True)
        keys, codes = np.unique(numbers * len(by[0]) + by[1], return_inverse=True)
        made = []
        for key in keys.tolist():
            number, which = divmod(key, len(by[0]))
            waker, waker_stack = divmod(int(by[0][which]), 1 << 32)
            made.append(self.number(self.stacks[number] + self._waker_frames(waker - 1, waker_stack - 1)))
        return np.array(made, np.int64)[codes]

    def _waker_frames(self, waker: int, stack: int) -> tuple[int, ...]:
        mark = Frame(FrameKind.WOKEN_BY, waker_name(self.table.wakers[waker], self.profile.threads))
        if mark not in self._frame_numbers:
            self._frame_numbers[mark] = len(self.frames)
            self.frames.append(mark)
        frames = self.profile.stacks[stack] if stack >= 0 else ()
        kept = tuple([frame for frame in reversed(frames) if self.frames[frame].kind not in _MARKS])
        return (self._frame_numbers[mark], *kept)
