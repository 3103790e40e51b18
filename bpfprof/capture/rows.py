"""Events of the kernel side to the arrays of a recording: pure, a batch at a time."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.capture.numbers import TRANSLATED
from bpfprof.capture.sleeping import Sleeps
from bpfprof.capture.stacks import StackTable
from bpfprof.model.samples import EVENT_DTYPE, SAMPLE_DTYPE, SHORT_DTYPE, TOTAL_DTYPE, WAIT_DTYPE
from bpfprof.model.statuses import LastState, Status

# Keys and thread ids of the kernel side, which have numbers of their own in the recording.
_NUMBERED = {"stack", "waker_stack", "holder_stack", "holder", "object"}
# A sleep without a stack for one of these reasons may have been looked at from user space.
_LOOKED_AT = np.zeros(256, np.bool_)
_LOOKED_AT[[Status.STACK_NOT_TAKEN, Status.PYTHON_NOT_READY, Status.NATIVE_NOT_READY, Status.NO_PYTHON]] = True
_LOOKED_AT[Status.NOT_SAMPLED] = True


def _fill_stacks(rows: npt.NDArray[np.void], keys: npt.NDArray[np.uint64], stacks: StackTable) -> None:
    rows["stack"] = stacks.indices(keys)
    rows["status"][(keys != 0) & (rows["stack"] == 0)] = Status.STACK_LOST


def _copy_fields(target: npt.NDArray[np.void], source: npt.NDArray[np.void]) -> None:
    for name in set(target.dtype.names or ()) & set(source.dtype.names or ()) - _NUMBERED:
        target[name] = TRANSLATED[name][source[name]] if name in TRANSLATED else source[name]


def samples(events: npt.NDArray[np.void], threads: npt.NDArray[np.int64], stacks: StackTable) -> npt.NDArray[np.void]:
    """Rows of SAMPLE_DTYPE; `events` are all samples and `threads` their indices, none of them -1."""
    rows = np.zeros(len(events), SAMPLE_DTYPE)
    _copy_fields(rows, events)
    rows["thread"] = threads
    _fill_stacks(rows, events["stack"], stacks)
    return rows


def events(events: npt.NDArray[np.void], threads: npt.NDArray[np.int64], stacks: StackTable) -> npt.NDArray[np.void]:
    """Rows of EVENT_DTYPE; `events` were all counted and `threads` are their indices, none of them -1."""
    rows = np.zeros(len(events), EVENT_DTYPE)
    _copy_fields(rows, events)
    rows["thread"], rows["event"], rows["count"] = threads, events["args"][:, 0], events["args"][:, 1]
    _fill_stacks(rows, events["stack"], stacks)
    return rows


def waits(
    events: npt.NDArray[np.void],
    threads: npt.NDArray[np.int64],
    stacks: StackTable,
    sleeps: Sleeps,
) -> npt.NDArray[np.void]:
    """Rows of WAIT_DTYPE but for `waker` and `holder`, which are to be filled in.

    A sleep that began before its stack could be taken gets the one read meanwhile.
    """
    rows = np.zeros(len(events), WAIT_DTYPE)
    _copy_fields(rows, events)
    rows["thread"] = threads
    _fill_stacks(rows, events["stack"], stacks)
    rows["waker_stack"] = stacks.indices(events["waker_stack"])
    rows["holder_stack"] = stacks.indices(events["holder_stack"])
    if sleeps.seen:
        woken = rows["time_ns"] - rows["runqueue_ns"]
        _fill_sleeps(rows, woken - rows["blocked_ns"], woken, stacks, sleeps)
    return rows


def totals(
    records: npt.NDArray[np.void],
    threads: npt.NDArray[np.int64],
    time_ns: int,
    stacks: StackTable,
    sleeps: Sleeps,
) -> npt.NDArray[np.void]:
    """Rows of TOTAL_DTYPE: what each thread (abi.THREAD_DTYPE) had done by time_ns and is doing."""
    rows = np.zeros(len(records), TOTAL_DTYPE)
    _copy_fields(rows, records)
    rows["thread"], rows["time_ns"] = threads, time_ns
    _fill_stacks(rows, records["stack"], stacks)
    rows["holder_stack"] = stacks.indices(records["holder_stack"])
    unseen = np.isin(rows["thread"], list(sleeps.seen)) & (rows["state"] == LastState.UNKNOWN)
    rows["state"][unseen] = LastState.BLOCKED
    blocked = rows["state"] == LastState.BLOCKED
    _fill_sleeps(rows, rows["since_ns"], np.where(blocked, np.uint64(time_ns), np.uint64(0)), stacks, sleeps)
    return rows


def exits(events: npt.NDArray[np.void], threads: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    """Rows of TOTAL_DTYPE of threads that are gone."""
    rows = np.zeros(len(events), TOTAL_DTYPE)
    _copy_fields(rows, events)
    rows["thread"], rows["since_ns"] = threads, events["time_ns"]
    rows["state"] = LastState.DEAD
    return rows


def short_waits(events: npt.NDArray[np.void], threads: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    """Rows of SHORT_DTYPE of sums that were sent."""
    rows = np.zeros(len(events), SHORT_DTYPE)
    _copy_fields(rows, events)
    rows["thread"] = threads
    rows["arg"], rows["count"] = events["args"][:, 0], events["args"][:, 1]
    return rows


def open_short_waits(records: npt.NDArray[np.void], threads: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    """Rows of SHORT_DTYPE of the sums that threads (abi.THREAD_DTYPE) still have."""
    sums = records["short_waits"]
    chosen = sums["count"] > 0
    rows = np.zeros(int(chosen.sum()), SHORT_DTYPE)
    _copy_fields(rows, sums[chosen])
    rows["thread"] = np.broadcast_to(threads[:, None], chosen.shape)[chosen]
    return rows


def _fill_sleeps(
    rows: npt.NDArray[np.void],
    begin_ns: npt.NDArray[np.uint64],
    end_ns: npt.NDArray[np.uint64],
    stacks: StackTable,
    sleeps: Sleeps,
) -> None:
    """Gives rows without a stack, or with an unfinished one, the one that was looked at while they lasted."""
    unfinished = stacks.unfinished
    is_unfinished = np.fromiter((stack in unfinished for stack in rows["stack"].tolist()), np.bool_, len(rows))
    has_no_stack = _LOOKED_AT[rows["status"]] & (rows["stack"] == 0)
    for position in np.flatnonzero(has_no_stack | is_unfinished).tolist():
        sleep = sleeps.at(int(rows["thread"][position]), int(begin_ns[position]), int(end_ns[position]))
        if sleep is None:
            continue
        if rows["stack"][position]:
            if sleep.stack and sleep.stack not in stacks.unfinished:
                rows["stack"][position] = sleep.stack
            continue
        if rows["status"][position] == Status.NOT_SAMPLED:  # the kernel side knows the rest
            if sleep.stack:
                rows["stack"][position], rows["status"][position] = sleep.stack, Status.OK
                if "one_in" in (rows.dtype.names or ()):
                    rows["one_in"][position] = 1  # it was not chosen by chance
            continue
        rows["stack"][position], rows["syscall"][position] = sleep.stack, sleep.syscall
        rows["args"][position] = sleep.args
        rows["status"][position] = Status.OK if sleep.stack else Status.NO_PYTHON
        rows["task_state"][position] = rows["task_state"][position] or sleep.task_state
