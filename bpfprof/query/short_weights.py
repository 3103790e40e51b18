"""Weights of a Profile that are of short waits: those that have no stack, only a sum."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile, ThreadState


def is_short_and_blocked(profile: Profile) -> npt.NDArray[np.bool_]:
    """Of each of the profile's weights whether it is blocked time of short waits."""
    begins = [bool(stack) and profile.frames[stack[0]].kind == FrameKind.SHORT_WAITS for stack in profile.stacks]
    is_short = np.take(np.array([*begins, False], np.bool_), profile.weights["stack"].astype(np.int64))
    return np.asarray(is_short & (profile.weights["state"] == ThreadState.OFF_CPU))
