"""The nice value while a recording starts and runs: what is met first must be looked at soon, on a busy machine too."""

from __future__ import annotations

import contextlib
import os

_HIGHEST = -20
_usual = os.getpriority(os.PRIO_PROCESS, 0)


def raise_priority(thread_id: int = 0) -> None:
    """The highest nice value for this thread, where that is allowed, and for threads it starts too; or for another."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread_id, _HIGHEST)


def usual_priority(thread_id: int = 0) -> None:
    """The nice value that bpfprof was started with, for this thread or another."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread_id, _usual)
