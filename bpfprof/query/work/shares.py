"""What the time of threads is spent on: the shares that views of work have, and which one a reason of a wait is of."""

from __future__ import annotations

import numpy as np

from bpfprof.model.reasons import REASONS
from bpfprof.model.states import reason_text
from bpfprof.query.code.functions import Ints

# What the time of working threads is spent on; IDLE and HANDED are what is left out of it.
# gpu: waits for a device that computes or copies, asleep or on a CPU; spin: waits for others on a CPU.
SHARES = ("python", "native", "ready", "gil", "lock", "disk", "net", "device", "gpu", "spin", "sleep", "child", "other")
IDLE, HANDED = len(SHARES), len(SHARES) + 1
PYTHON, NATIVE, READY, GIL, LOCK, DISK, NET, DEVICE, GPU, SPIN, SLEEP, CHILD, OTHER = range(len(SHARES))

OF_REASON = {reason.word: reason.share for reason in REASONS}


def reason_shares(reason: Ints) -> Ints:
    """A place in SHARES for each wait, by what it was for alone."""
    return _shares_of(reason, OF_REASON)


def work_shares(reason: Ints) -> Ints:
    """A place in SHARES for each wait of a thread that never waits for work; a poll may be for anything."""
    return _shares_of(reason, {**OF_REASON, "poll": "other"})


def _shares_of(reason: Ints, words: dict[str, str]) -> Ints:
    of_reason = np.zeros(int(reason.max(initial=0)) + 1, np.int64)
    for number in np.flatnonzero(np.bincount(reason)).tolist():
        of_reason[number] = SHARES.index(words.get(reason_text(number), "other"))
    return of_reason[reason]
