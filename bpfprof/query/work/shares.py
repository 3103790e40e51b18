"""What the time of threads is spent on: the shares that views of work have, and which one a reason of a wait is of."""

from __future__ import annotations

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.model.reasons import REASONS
from bpfprof.model.states import reason_text
from bpfprof.query.code.functions import Ints


@dataclass(frozen=True)
class Share:
    """word: of the JSON contract; name: on the first screen; among: beside others in a sentence ("Mixed: ..."); doing:
    what a thread does meanwhile; awaited: what it waits for, as a part of a sentence, "" where it is no wait for
    another; color: SGR parameter of a terminal's colour (ECMA-48, 8.3.117), "" none."""

    word: str
    name: str
    among: str
    doing: str
    awaited: str = ""
    color: str = ""


# gpu: waits for a device that computes or copies, asleep or on a CPU; spin: waits for others on a CPU.
_SHARES = (
    Share("python", "CPU", "Python", "CPU time in Python", color="33"),
    Share("native", "CPU", "native code", "CPU time in native code", color="33"),
    Share("ready", "ready", "ready without a CPU", "waiting for a CPU", color="35"),
    Share("gil", "GIL", "GIL", "waiting for the GIL", "the GIL", "31"),
    Share("lock", "lock", "locks", "waiting for locks", "locks", "36"),
    Share("disk", "disk", "disk", "waiting for the disk", "the disk", "32"),
    Share("net", "network", "network", "waiting for the network", "the network", "32"),
    Share("device", "device", "devices", "waiting for a device", "a device"),
    Share("gpu", "GPU", "the GPU", "waiting for the GPU", "the GPU", "34"),
    Share("spin", "spinning", "spinning", "spinning", color="34"),
    Share("sleep", "sleep", "sleep", "sleeping on purpose"),
    Share("child", "process", "other processes", "waiting for other processes", "another process"),
    Share("other", "other", "other waits", "waiting for something else", "something else"),
)
# Part of another share, of which a verdict makes a cause of its own.
MEMORY = Share("memory", "memory", "pages of memory", "waiting for pages of memory", "pages from the disk")
# What the time of working threads is spent on; IDLE and HANDED are what is left out of it.
SHARES = tuple(share.word for share in _SHARES)
IDLE, HANDED = len(SHARES), len(SHARES) + 1
PYTHON, NATIVE, READY, GIL, LOCK, DISK, NET, DEVICE, GPU, SPIN, SLEEP, CHILD, OTHER = range(len(SHARES))
SHARE_OF_WORD = {share.word: share for share in (*_SHARES, MEMORY)}
# As the first screen calls them, and what is left out.
SHARE_NAMES = (*(share.name for share in _SHARES), "idle", "other threads")

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
