"""Spans: one row for each stretch of one thread's time. Everything that is shown is made of them.

The rows of a thread, in the order of time, cover its wall time exactly: each begins where the one before ends, the
first at the thread's first moment, the last ends at its last one. What they speak for is the same time: in any window
the sum of `stands_for_ns` is that of `duration_ns`.
"""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.states import How, SpanFlag, ThreadState

__all__ = [
    "CONDITION_LOCK",
    "LOCK_ADDRESS",
    "PARKED_LOCK",
    "PIECE_DTYPE",
    "SHARED_LOCK",
    "SPAN_DTYPE",
    "SPAN_HOLDER_DTYPE",
    "WAIT_TIME_DTYPE",
    "How",
    "SpanFlag",
    "ThreadState",
    "times_of",
]


# In `lock`: the futex may be in memory that processes share; it is taken for one where they have it at one address, as
# after a fork.
SHARED_LOCK = 1 << 63
# Each that waits has a futex of its own, and this is the lock's address: CPython 3.14 and later.
PARKED_LOCK = 1 << 62
# It waits in threading.Condition.wait() for notify(): the address is the condition's, 0: not known.
CONDITION_LOCK = 1 << 61
LOCK_ADDRESS = CONDITION_LOCK - 1

# What each column is.
SPAN_DTYPE = np.dtype(
    [
        # On the clock: nanoseconds since the recording began, and how long.
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        # What it speaks for: its own time and that of waits like it, or 0 where others speak for it.
        ("stands_for_ns", "<i8"),
        (
            "lock",
            "<u8",
        ),  # LOCK_ADDRESS of the futex that is waited for, and what else is known of it; of a file-lock where
        # its range begins; 0: none
        ("count", "<u4"),  # samples, or waits that begin here; with those that it speaks for
        ("thread", "<u4"),  # index
        ("stack", "<u4"),  # 0: none, and `status` says why
        ("wait", "<u4"),  # a number for each wait that has a row in the recording; 0: none
        ("waker", "<u4"),  # place in the table of wakers, from 1 on; 0: not known
        ("waker_stack", "<u4"),
        ("holder", "<u4"),  # of the GIL that is waited for: index of the thread + 1, 0: not known
        ("holder_stack", "<u4"),
        ("object", "<u4"),  # of the call's descriptor or futex: place in the table of objects, from 1 on; 0: not known
        ("reason", "<u2"),  # model.states; of RUNQUEUE: of the wait before it, 0: others took the CPU
        ("task_state", "<u2"),  # prev_state of sched_switch
        ("cpu", "<u2"),  # on which a sample saw it run, + 1; 0: no sample did
        ("one_in", "<u2"),  # chosen at random as one in so many; 0 or 1: it stands for itself alone
        ("state", "u1"),  # ThreadState
        ("how", "u1"),  # How
        ("status", "u1"),  # model.statuses.Status
        ("flags", "u1"),  # SpanFlag
    ]
)

# One row for each wait whose times are known, for a GIL one for each part. start_ns, duration_ns: as in spans;
# span: place of the span that it is a part of.
WAIT_TIME_DTYPE = np.dtype([("start_ns", "<i8"), ("duration_ns", "<i8"), ("span", "<u4")])

# One row for each single span where those that are alike are kept as one. span: place of that one; others: as in spans.
PIECE_DTYPE = np.dtype(
    [
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("stands_for_ns", "<i8"),
        ("span", "<u4"),
        ("count", "<u4"),
        ("wait", "<u4"),
        ("holder", "<u4"),
        ("cpu", "<u2"),
    ]
)

# One row a (span, holder, holder's stack) of waits for a GIL; span: its place, the others as in spans.
SPAN_HOLDER_DTYPE = np.dtype([("span", "<u4"), ("holder", "<u4"), ("holder_stack", "<u4"), ("stands_for_ns", "<i8")])


def times_of(spans: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """WAIT_TIME_DTYPE of single spans, in their order."""
    places = np.flatnonzero((spans["state"] == ThreadState.OFF_CPU) & (spans["how"] != How.SUMMED))
    rows = np.zeros(len(places), WAIT_TIME_DTYPE)
    for name in ("start_ns", "duration_ns"):
        rows[name] = spans[name][places]
    rows["span"] = places
    return rows
