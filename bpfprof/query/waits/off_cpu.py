"""A Profile with its spans -> the same with the stacks of who ended its waits.

A stack goes on after its leaf mark, as that of bcc's offwaketime: a WOKEN_BY frame, the waker's frames leaf first, and
so on with who had woken the waker.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Interner, Profile
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.profile.weights import weights_of
from bpfprof.query.code.functions import Ints
from bpfprof.query.waits.chains import waker_name
from bpfprof.query.work.waits import Waits, find_waits

_MARKS = (FrameKind.WAIT, FrameKind.RUNQUEUE, FrameKind.NOT_SAMPLED)


def with_wakers(profile: Profile, depth: int) -> Profile:
    """Each wait with up to `depth` wakers. Raises ValueError without spans."""
    waits, interner = find_waits(profile), Interner.of(profile)
    assert profile.spans is not None
    stacks = _continued(profile, waits, interner, depth)
    spans = profile.spans.copy()
    is_wait = (spans["state"] == ThreadState.OFF_CPU) & (spans["wait"] > 0)
    row_of = np.zeros(int(spans["wait"].max(initial=0)) + 1, np.int64)
    row_of[waits.rows["number"]] = np.arange(len(waits.rows))
    spans["stack"][is_wait] = stacks[row_of[spans["wait"][is_wait]]]
    shown = spans[spans["flags"] & SpanFlag.HIDDEN == 0]
    weights = weights_of(shown, shown["stack"])
    frames, made = tuple(interner.frames), tuple(interner.stacks)
    return replace(profile, frames=frames, stacks=made, weights=weights, spans=spans)


def _continued(profile: Profile, waits: Waits, interner: Interner, depth: int) -> Ints:
    """The stack of each wait, continued by its wakers."""
    rows, numbers = waits.rows, waits.rows["stack"].astype(np.int64)
    current = np.arange(len(rows))  # whose waker comes next, -1: the end
    for _ in range(depth):
        alive = np.flatnonzero(current >= 0)
        of_alive = rows[current[alive]]
        alive, of_alive = alive[of_alive["waker"] > 0], of_alive[of_alive["waker"] > 0]
        current = np.full(len(rows), -1, np.int64)
        if not len(alive):
            break
        numbers[alive] = _with_waker(profile, interner, numbers[alive], of_alive)
        current[alive] = of_alive["before"]
    return numbers


def _with_waker(profile: Profile, interner: Interner, numbers: Ints, rows: npt.NDArray[np.void]) -> Ints:
    """Each stack with the waker of its row after it; equal ones are made once."""
    pairs, of_pair = np.unique(rows["waker"].astype(np.int64) << 32 | rows["waker_stack"], return_inverse=True)
    keys, codes = np.unique(numbers * len(pairs) + of_pair, return_inverse=True)
    made = []
    for number, pair in zip(*np.divmod(keys, len(pairs))):
        waker, stack = divmod(int(pairs[pair]), 1 << 32)
        name = waker_name(profile.wakers[waker - 1], profile.threads)
        frames = reversed(profile.stacks[stack - 1] if stack else ())
        after = [frame for frame in frames if interner.frames[frame].kind not in _MARKS]
        mark = interner.frame(Frame(FrameKind.WOKEN_BY, name))
        made.append(interner.of_numbers((*interner.stacks[number], mark, *after)))
    return np.array(made, np.int64)[codes]
