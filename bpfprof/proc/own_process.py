"""What bpfprof's own process is to the system, and what it was before, as a launched command is to be."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Iterator

_HIGHEST = -20
_usual = os.getpriority(os.PRIO_PROCESS, 0)
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


def usual_nice() -> int:
    """The nice value that bpfprof was started with."""
    return _usual


def usual_priority(thread_id: int = 0) -> None:
    """The nice value that bpfprof was started with, for this thread or another."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread_id, _usual)


@contextlib.contextmanager
def first_for(seconds: float) -> Iterator[None]:
    """Within the block the highest nice value, where that is allowed, but for so long only."""
    timer = threading.Timer(seconds, _all_usual)
    timer.daemon = True
    raise_priority()
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _all_usual()


def _all_usual() -> None:
    """Those that were started meanwhile have what their starter had."""
    for name in os.listdir("/proc/self/task"):
        usual_priority(int(name))


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
