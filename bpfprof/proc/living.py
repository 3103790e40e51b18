"""Under which id /proc tells of a process's memory and files: a pid in, the id of a thread that goes on out."""

from __future__ import annotations

import os

from bpfprof.model.ids import Pid

DEAD_STATES = (b"Z", b"X")  # of proc(5)


def living(pid: Pid) -> Pid:
    """The pid itself; where its main thread has ended, the oldest thread that goes on, if there is one.

    The kernel takes memory and files from each thread that ends: do_exit(), kernel/exit.c (Linux 6.1). /proc/TID is
    there for every thread, though it is not listed.
    """
    if not has_ended(f"/proc/{pid}/stat"):
        return pid
    try:
        with os.scandir(f"/proc/{pid}/task") as threads:  # in the order of their birth, the main thread first
            others = (thread.name for thread in threads if thread.name != str(pid))
            return next((Pid(int(tid)) for tid in others if not has_ended(f"/proc/{tid}/stat")), pid)
    except OSError:
        return pid


def has_ended(stat_path: str) -> bool:
    """Whether this thread has ended and is still there; False when it is gone."""
    try:
        fd = os.open(stat_path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(fd, 512).rpartition(b")")[2].split()[:1] in ([state] for state in DEAD_STATES)
    except OSError:
        return False
    finally:
        os.close(fd)
