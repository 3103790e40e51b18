"""What bpfprof's own process is to the system, and what it was before, as a launched command is to be."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import threading
import time

_HIGHEST = -20
_GIVE_BACK_EVERY_S, _given_back_s = 30.0, 0.0
_FIRST = os.sched_param(os.sched_get_priority_min(os.SCHED_RR))
_usual = os.getpriority(os.PRIO_PROCESS, 0)
_usual_policy, _usual_parameters = os.sched_getscheduler(0), os.sched_getparam(0)
_usual_locked_memory = resource.getrlimit(resource.RLIMIT_MEMLOCK)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Ignored from the start: by nohup, or SIGINT by a shell for what it runs in the background.
ignored_signals = {number for number in STOP_SIGNALS if signal.getsignal(number) == signal.SIG_IGN}


def raise_priority(thread_id: int = 0) -> None:
    """The highest nice value for this thread, where that is allowed, and for threads it starts too; or for another.

    What a recording meets first must be looked at soon, on a busy machine too.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread_id, _HIGHEST)


def give_back_memory() -> None:
    """What was freed, but not given back to the system, as something behind it is in use; now and then, for it takes
    some milliseconds. malloc_trim(3) of glibc."""
    global _given_back_s
    if time.monotonic() - _given_back_s >= _GIVE_BACK_EVERY_S:
        with contextlib.suppress(AttributeError):  # another libc
            ctypes.CDLL(None).malloc_trim(0)
        _given_back_s = time.monotonic()


def usual_nice() -> int:
    """The nice value that bpfprof was started with."""
    return _usual


def usual_priority(thread_id: int = 0) -> None:
    """What bpfprof was started with, policy and nice value, for this thread or another."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(thread_id, _usual_policy, _usual_parameters)
        os.setpriority(os.PRIO_PROCESS, thread_id, _usual)


def go_first_for(seconds: float, *others: int) -> None:
    """For so long this process's threads, those that they start, and other processes run before all programs.

    That is SCHED_RR. A flood of programs can't put off the end of a recording then: a nice value counts only within a
    session where sched(7)'s autogroups are on, and within a control group. It is what there is where SCHED_RR is not
    allowed.
    """
    for thread_id in (*_own_threads(), *others):
        try:
            os.sched_setscheduler(thread_id, os.SCHED_RR, _FIRST)
        except OSError:
            raise_priority(thread_id)
    timer = threading.Timer(seconds, all_usual, others)
    timer.daemon = True
    timer.start()


def all_usual(*others: int) -> None:
    """usual_priority() for each thread of this process, and for other processes."""
    for thread_id in (*_own_threads(), *others):
        usual_priority(thread_id)


def _own_threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def lift_locked_memory_limit() -> None:
    """No limit (`ulimit -l`), where that is allowed."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def usual_locked_memory_limit() -> None:
    """The limit that bpfprof was started with."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, _usual_locked_memory)


def usual_signals() -> None:
    """What happens on a signal is what it was, and none is blocked. Python ignores two more, which no shell does."""
    for number in (*STOP_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN if number in ignored_signals else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
