"""Spans: one row for each stretch of one thread's time. Everything that is shown is made of them.

The rows of a thread, in the order of time, cover its wall time exactly: each begins where the one before ends, the
first at the thread's first moment, the last ends at its last one. What they speak for is the same time: in any window
the sum of `stands_for_ns` is that of `duration_ns`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np


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


# What each column is.
SPAN_DTYPE = np.dtype(
    [
        # On the clock: nanoseconds since the recording began, and how long.
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        # What it speaks for: its own time and that of waits like it, or 0 where others speak for it.
        ("stands_for_ns", "<i8"),
        ("lock", "<u8"),  # address of the futex that is waited for, 0: none
        ("count", "<u4"),  # samples, or waits that begin here; with those that it speaks for
        ("thread", "<u4"),  # index
        ("stack", "<u4"),  # 0: none, and `status` says why
        ("wait", "<u4"),  # a number for each wait that has a row in the recording; 0: none
        ("waker", "<u4"),  # place in the table of wakers, from 1 on; 0: not known
        ("waker_stack", "<u4"),
        ("holder", "<u4"),  # of the GIL that is waited for: index of the thread + 1, 0: not known
        ("holder_stack", "<u4"),
        ("reason", "<u2"),  # model.reasons; of RUNQUEUE: of the wait before it, 0: the CPU was stolen
        ("task_state", "<u2"),  # prev_state of sched_switch
        ("one_in", "<u2"),  # chosen at random as one in so many; 0 or 1: it stands for itself alone
        ("state", "u1"),  # ThreadState
        ("how", "u1"),  # How
        ("status", "u1"),  # model.statuses.Status
        ("flags", "u1"),  # SpanFlag
    ]
)
