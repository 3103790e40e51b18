"""Processes whose end is told already, and that are gone: nothing more is asked of them, for nobody would answer."""

from __future__ import annotations

from collections.abc import Iterable

from bpfprof.model.ids import Pid, Tid
from bpfprof.proc import tasks

_DEAD = "ZX"  # states of proc(5)


class Gone:
    """Between the moment at which their ends are read and the one at which these are followed."""

    def __init__(self) -> None:
        self._told: set[int] = set()
        self._gone: set[int] = set()  # those of them that were asked for in vain

    def told(self, pids: Iterable[int]) -> None:
        """The end of these will follow."""
        self._told.update(pids)

    def has(self, pid: Pid) -> bool:
        """Whether it is gone, and its end is told."""
        if int(pid) in self._told and int(pid) not in self._gone and not lives(pid):
            self._gone.add(int(pid))
        return int(pid) in self._gone

    def born(self, pid: Pid) -> bool:
        """The same of a process that has this pid since its birth: who had it before was another."""
        self._gone.discard(int(pid))
        return self.has(pid)

    def followed(self, pid: Pid) -> None:
        """Its end."""
        self._told.discard(int(pid))
        self._gone.discard(int(pid))


def lives(pid: Pid) -> bool:
    """Whether a thread of it runs or waits: the first one may be gone before the others."""
    status = tasks.thread_status(pid, Tid(pid))
    return (status is not None and status.run_state not in _DEAD) or bool(set(tasks.list_threads(pid)) - {pid})
