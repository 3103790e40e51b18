"""Who ended each wait: places in the table of wakers of a profile."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.columns import Columns
from bpfprof.account.threads import Int64Array
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.profile import Waker
from bpfprof.model.samples import WakerKind
from bpfprof.model.states import reason_number
from bpfprof.model.syscalls import syscall_numbers
from bpfprof.recording.contents import Recording
from bpfprof.recording.tables import RecordedWaker

# An interrupt that ends one of these waits is taken for a timer's: network interrupts end net, disks end disk. A device
# that is waited for in a call with a timeout is not told apart from it.
_TIMED = ("sleep", "lock", "poll")
_TIMED_CALLS = sorted(
    syscall_numbers(
        *["futex", "futex_waitv", "futex_wait", "nanosleep", "clock_nanosleep", "poll", "ppoll", "select", "pselect6"],
        *["epoll_wait", "epoll_pwait", "epoll_pwait2"],
    )
)
_POLL = next(iter(syscall_numbers("poll")))
_TIMER_SLACK_NS = 2_000_000  # a timer of poll() may be rounded up to a tick or so, and its thread's sleep began later


def waker_table(recording: Recording) -> tuple[Waker, ...]:
    """Those of the recording, the timer, other interrupts, then its threads that ended no wait, but may hold locks.

    A thread of a target has the names it had last.
    """
    rows = [waker_of(recording, row) for row in recording.wakers]
    ended = {row.thread for row in rows}
    others = (_of_thread(recording, thread) for thread in range(len(recording.threads)) if thread not in ended)
    return (*rows, Waker("timer"), Waker("interrupt"), *others)


def _of_thread(recording: Recording, thread: int) -> Waker:
    row = recording.threads[thread]
    process = recording.processes[row.process]
    return Waker("thread", Pid(process.pid), Tid(row.tid), process.name, row.shown_name(process), thread)


def waker_of(recording: Recording, row: RecordedWaker) -> Waker:
    """What a row of the table of wakers is, with the place of its thread in the recording's table."""
    process_name, name = row.process_name, row.name
    if row.thread:
        thread = recording.threads[row.thread - 1]
        process = recording.processes[thread.process]
        process_name, name = process.name or process_name, thread.shown_name(process) or name
    return Waker("thread", Pid(row.pid), Tid(row.tid), process_name, name, row.thread - 1)


def waker_places(
    recording: Recording, rows: Columns, reasons: npt.NDArray[np.uint16], blocked_ns: Int64Array
) -> npt.NDArray[np.uint32]:
    """For each of these rows of waits its waker's place in waker_table() from 1 on; 0: not known."""
    places, kinds, calls = rows["waker"].astype(np.int64), rows["waker_kind"], rows["syscall"]
    is_interrupt = (kinds == WakerKind.INTERRUPT) | (kinds == WakerKind.SOFT_INTERRUPT)
    is_timed = np.isin(reasons, [reason_number(word) for word in _TIMED]) | np.isin(calls, _TIMED_CALLS)
    # poll() says how long it waits, in milliseconds, less than 0: until something happens.
    timeout_ms = rows["args"][:, 2].astype(np.uint32).view(np.int32).astype(np.int64)
    is_early = (timeout_ms < 0) | (blocked_ns + _TIMER_SLACK_NS < timeout_ms * 1_000_000)
    is_timed &= ~(is_early & (calls == _POLL)) & (kinds == WakerKind.INTERRUPT)
    places[is_interrupt] = len(recording.wakers) + np.where(is_timed[is_interrupt], 1, 2)
    # A timer ends none but slices of a wait for the GIL: the last slice, which the holder ended, has no row.
    places[(reasons == reason_number("gil")) & (kinds == WakerKind.INTERRUPT)] = 0
    return places.astype(np.uint32)
