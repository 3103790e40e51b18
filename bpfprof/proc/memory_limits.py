"""How often the memory of control groups was about to go over its limit (cgroups(7)), when the kernel makes room.

And how much memory there is for bpfprof itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from bpfprof.model.ids import Pid
from bpfprof.proc.cgroups import Cgroup, directories_above, hierarchy_of

# Documentation/admin-guide/cgroup-v2.rst: of this cgroup alone, since Linux 5.2. v1 has one number in a file.
_EVENTS, _FAILED = "memory.events.local", "memory.failcnt"
_LIMITS = "memory.max", "memory.limit_in_bytes"  # of v2, where it may be the word max, and v1
_HITS = re.compile(rb"^(?:high|max) (\d+)$", re.MULTILINE)


class MemoryLimits:
    """Counts from when a process is first looked at."""

    def __init__(self) -> None:
        self._hierarchy: Cgroup | None = hierarchy_of("memory")
        self._before: dict[str, int] = {}  # by directory of a cgroup

    def begin(self, pids: Iterable[Pid]) -> None:
        """Counts from now on for these processes."""
        for pid in pids:
            for directory in self._directories(pid):
                if directory not in self._before:
                    self._before[directory] = _hits(directory)

    def hits(self, pids: Iterable[Pid]) -> dict[str, int]:
        """pid -> how often one of its cgroups was at a limit; without those for which that is 0."""
        now: dict[str, int] = {}
        found = {}
        for pid in pids:
            directories = [directory for directory in self._directories(pid) if directory in self._before]
            now |= {directory: _hits(directory) for directory in directories if directory not in now}
            count = sum(now[directory] - self._before[directory] for directory in directories)
            if count > 0:
                found[str(pid)] = count
        return found

    def _directories(self, pid: Pid) -> list[str]:
        return directories_above(self._hierarchy, pid) if self._hierarchy else []


def memory_there_is(meminfo: str = "/proc/meminfo") -> int:
    """Bytes that this process and what it makes in the kernel may take: the machine's, or a limit of its cgroups."""
    found = [1024 * int(kib) for kib in re.findall(rb"^MemTotal: +(\d+) kB", _text(meminfo), re.MULTILINE)]
    hierarchy = hierarchy_of("memory")
    for directory in directories_above(hierarchy, Pid(os.getpid())) if hierarchy else ():
        for name in _LIMITS:
            text = _text(os.path.join(directory, name)).strip()
            found += [int(text)] if text.isdigit() else []
    return min(found, default=1 << 63)


def _text(path: str) -> bytes:
    """b"" where there is none."""
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def _hits(directory: str) -> int:
    """0 where it is not known, or the cgroup is gone."""
    for name, pattern in ((_EVENTS, _HITS), (_FAILED, re.compile(rb"(\d+)"))):
        text = _text(os.path.join(directory, name))
        if text:
            return sum(map(int, pattern.findall(text)))
    return 0
