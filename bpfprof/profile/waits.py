"""What a thread waited for, from the system call it waited in, its arguments and the thread's state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bpfprof.model.samples import FdKind
from bpfprof.model.syscalls import syscall_name, syscall_numbers

_UNINTERRUPTIBLE = 2  # TASK_UNINTERRUPTIBLE, include/linux/sched.h
_STOPPED = 4 | 8  # __TASK_STOPPED, __TASK_TRACED: by a signal or a debugger
_NAMED = ("gil", "lock", "sleep", "disk", "net", "pipe", "poll", "child", "device", "pagefault", "stopped")
_SYSCALL_BASE = 1000  # reason of a call without a better word: its number above this

_CALLS = {
    "lock": ("futex", "futex_waitv", "futex_wait"),
    "sleep": ("nanosleep", "clock_nanosleep"),
    "disk": ("fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "msync"),
    "net": ("connect", "accept", "accept4", "sendto", "recvfrom", "sendmsg", "recvmsg", "recvmmsg", "sendmmsg"),
    "poll": ("select", "pselect6", "poll", "ppoll", "epoll_wait", "epoll_pwait", "epoll_pwait2"),
    "child": ("wait4", "waitid"),
}
_REASON_OF_DESCRIPTOR = {
    FdKind.FILE: "disk",
    FdKind.PIPE: "pipe",
    FdKind.SOCKET: "net",
    FdKind.DEVICE: "device",
}
_FUTEX = syscall_numbers("futex", "futex_waitv", "futex_wait")
_SELECT, _POLL = syscall_numbers("select", "pselect6"), syscall_numbers("poll", "ppoll")


def _reason_table() -> npt.NDArray[np.uint16]:
    table = np.arange(1 << 15, dtype=np.uint16) + np.uint16(_SYSCALL_BASE)
    for reason, names in _CALLS.items():
        table[list(syscall_numbers(*names))] = _NAMED.index(reason)
    return table


_REASON_OF_CALL = _reason_table()


def wait_reasons(
    rows: npt.NDArray[np.void], gil_start: npt.NDArray[np.uint64], gil_end: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint16]:
    """A reason for each row (fields syscall, task_state, args, fd_kind of WAIT_DTYPE); see reason_text().

    gil_start and gil_end: where the GIL of each row's process lies, both 0 where it has none.
    """
    calls = rows["syscall"].astype(np.int64)
    reasons = _REASON_OF_CALL[np.maximum(calls, 0)]
    first, second = rows["args"][:, 0], rows["args"][:, 1]
    in_gil = (first >= gil_start) & (first < gil_end)
    reasons[np.isin(calls, list(_FUTEX)) & in_gil] = _NAMED.index("gil")
    # Waiting for no descriptor is sleeping: time.sleep() before CPython 3.11 is a select() of nothing.
    waits_for_none = (np.isin(calls, list(_SELECT)) & (first == 0)) | (np.isin(calls, list(_POLL)) & (second == 0))
    reasons[waits_for_none] = _NAMED.index("sleep")
    for kind, reason in _REASON_OF_DESCRIPTOR.items():
        reasons[(reasons >= _SYSCALL_BASE) & (rows["fd_kind"] == kind)] = _NAMED.index(reason)
    unnamed = (reasons >= _SYSCALL_BASE) & (rows["task_state"] & _UNINTERRUPTIBLE != 0)
    reasons[unnamed] = _NAMED.index("disk")
    reasons[calls < 0] = _NAMED.index("pagefault")
    reasons[rows["task_state"] & _STOPPED != 0] = _NAMED.index("stopped")
    return reasons


def reason_text(reason: int) -> str:
    """The word of the text contract for a reason."""
    if reason >= _SYSCALL_BASE:
        return f"syscall {syscall_name(reason - _SYSCALL_BASE)}"
    return _NAMED[reason]
