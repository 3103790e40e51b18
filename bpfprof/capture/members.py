"""The processes of control groups: who is in them now, and who joined since.

A child is born into its parent's cgroup, and is followed. Others join when they are moved, mostly to run a program
right after, or are born into it by a parent outside: the kernel side tells when a process runs another program, and the
lists of the cgroups are read now and then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import field

from bpfprof.dataclass import dataclass
from bpfprof.model.ids import Pid
from bpfprof.proc.cgroups import Cgroup, find_cgroup, find_container

_EVERY_S = 0.25
_REST = 100  # times what a look took: it costs at most 1% of a CPU


@dataclass
class Members:
    """`names` are for a line on the terminal and the name of a file."""

    names: list[str]
    cgroups: list[Cgroup]
    _due_s: float = 0.0
    _own: Pid = field(default_factory=lambda: Pid(os.getpid()))

    @classmethod
    def find(cls, paths: Sequence[str], containers: Sequence[str]) -> Members:
        """Raises TargetError for one that does not exist, or could be several."""
        members = cls([], [])
        for path in paths:
            found = find_cgroup(path)
            members.names.append(f"cgroup {found[0].path}")
            members.cgroups += found
        for text in containers:
            container, found = find_container(text)
            members.names.append(container.label)
            members.cgroups += found
        return members

    @property
    def have_ended(self) -> bool:
        """Whether all of the cgroups were removed: nothing can join any more."""
        return bool(self.cgroups) and not any(cgroup.exists for cgroup in self.cgroups)

    def hold(self, pid: Pid) -> bool:
        """Whether a process is in one of them."""
        return pid != self._own and any(cgroup.holds(pid) for cgroup in self.cgroups)

    def list(self) -> set[Pid]:
        """All that are there now."""
        begin_s = time.monotonic()
        found = {pid for cgroup in self.cgroups for pid in cgroup.processes()}
        end_s = time.monotonic()
        self._due_s = end_s + max(_EVERY_S, _REST * (end_s - begin_s))
        return found - {self._own}

    def list_when_due(self) -> set[Pid]:
        """The same, as often as it may cost; else none."""
        return self.list() if self.cgroups and time.monotonic() >= self._due_s else set()
