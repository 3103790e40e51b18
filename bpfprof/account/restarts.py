"""Waits that a stop by a signal cut in two: the second part is in restart_syscall, whatever the call was before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bpfprof.model.syscalls import syscall_numbers

_RESTART = next(iter(syscall_numbers("restart_syscall")))
# The kernel restarts no others that way; the arguments stay in their registers.
_RESTARTED = sorted(syscall_numbers("nanosleep", "clock_nanosleep", "futex", "poll"))


def name_restarted(waits: npt.NDArray[np.void], unended: npt.NDArray[np.void]) -> None:
    """Gives rows of WAIT_DTYPE in restart_syscall the call of their thread's row before, in place, if it can be it.

    unended: rows that come after all others of their thread.
    """
    calls = np.concatenate([waits["syscall"], unended["syscall"]])
    if not (calls == _RESTART).any():
        return
    thread = np.concatenate([waits["thread"], unended["thread"]])
    order = np.lexsort((np.concatenate([waits["time_ns"], unended["time_ns"]]), thread))  # stable
    restarted = calls[order] == _RESTART
    tells = (calls[order] >= 0) & ~restarted
    before = np.maximum.accumulate(np.where(tells, np.arange(len(calls)), 0))
    call = calls[order][before]
    known = restarted & (thread[order][before] == thread[order]) & np.isin(call, _RESTARTED)
    calls[order[known]] = call[known]
    waits["syscall"], unended["syscall"] = np.split(calls, [len(waits)])
