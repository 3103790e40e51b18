"""What a thread was doing, and how it is known. Apart from spans.py, which needs numpy: that takes 40 ms to import."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class ThreadState(IntEnum):
    """What a thread was doing; every nanosecond of a thread is in exactly one."""

    ON_CPU = 0
    RUNQUEUE = 1
    OFF_CPU = 2
    UNKNOWN = 3  # what tells of this time was lost


class How(IntEnum):
    """How the time is known."""

    SEEN = 0  # by an event of its own; CPU time: shared out over the samples
    SUMMED = 1  # waits that were added up: how long is exact, when within the time between other rows is not
    ESTIMATED = 2  # seen, and chosen at random to speak for others like it too


class SpanFlag(IntFlag):
    """Added up."""

    HOLDS_GIL = 1  # of its interpreter, when the span began
    IDLE = 2  # the thread waited for work
    HIDDEN = 4  # in a profile: not asked for, but it may tell who ended a wait that was
