"""What bpfprof's own process is to the system: the user behind sudo, its nice value, its limit of locked memory."""

from __future__ import annotations

import contextlib
import os
import resource

_HIGHEST = -20
_usual = os.getpriority(os.PRIO_PROCESS, 0)
_usual_locked_memory = resource.getrlimit(resource.RLIMIT_MEMLOCK)


def caller_ids() -> tuple[int, int] | None:
    """(uid, gid) of the user who called sudo, None when this is not run by root through sudo."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() != 0 or not uid.isdigit() or not gid.isdigit():
        return None
    return int(uid), int(gid)


def raise_priority(thread_id: int = 0) -> None:
    """The highest nice value for this thread, where that is allowed, and for threads it starts too; or for another.

    What a recording meets first must be looked at soon, on a busy machine too.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread_id, _HIGHEST)


def usual_priority(thread_id: int = 0) -> None:
    """The nice value that bpfprof was started with, for this thread or another."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread_id, _usual)


def lift_locked_memory_limit() -> None:
    """No limit (`ulimit -l`), where that is allowed."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def usual_locked_memory_limit() -> None:
    """The limit that bpfprof was started with."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, _usual_locked_memory)
