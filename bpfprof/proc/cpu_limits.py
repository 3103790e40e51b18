"""How many CPUs a process may use: its affinity, and the quotas of its control groups; how often those were used up."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from bpfprof.dataclass import dataclass
from bpfprof.model.ids import Pid
from bpfprof.proc.cgroups import Cgroup, directories_above, hierarchy_of
from bpfprof.proc.text import without_controls

_NOTED_LIMIT = 10_000  # processes of a recording
_MAX, _QUOTA, _PERIOD = "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"  # of v2, and of v1


@dataclass(frozen=True)
class _Counts:
    """Periods in which something ran, in how many of them the quota was used up, and for how long CPUs were stopped."""

    periods: int
    throttled: int
    stopped_us: int


class CpuLimits:
    """What processes may use, and what their control groups' quotas did since a process was first looked at."""

    def __init__(self) -> None:
        self._hierarchy: Cgroup | None = hierarchy_of("cpu")
        self._before: dict[str, _Counts] = {}  # by directory of a cgroup with a quota
        self._path_of: dict[str, str] = {}
        self.percents: dict[str, int] = {}  # of a CPU, by pid, those that were looked at last
        self._noted: set[Pid] = set()

    def note(self, pids: Iterable[Pid]) -> None:
        """What these may use, while they are there; for each that is new. A pid may be given again."""
        noted, self._noted = self._noted, set(pids)
        new = sorted(self._noted - noted)
        self.begin(new)
        for pid in new:
            self.percents.pop(str(pid), None)
            if cpus := cpus_of(pid):
                self.percents[str(pid)] = round(100 * cpus)
        for old in list(self.percents)[:-_NOTED_LIMIT] if len(self.percents) > _NOTED_LIMIT else ():
            del self.percents[old]

    def begin(self, pids: Iterable[Pid]) -> None:
        """Counts from now on for the control groups of these processes."""
        for pid in pids:
            for directory, path in self._with_quota(pid):
                if directory not in self._before:
                    self._before[directory], self._path_of[directory] = _counts(directory), path

    def told(self, pids: Iterable[Pid]) -> dict[str, Any]:
        """Fields of the end of a recording: what its processes may use, and what stopped these."""
        by_pid, throttled = self.throttled(pids)
        return {"cpu_limits": self.percents, "cpu_throttled_by": by_pid, "cpu_throttled": throttled}

    def throttled(self, pids: Iterable[Pid]) -> tuple[dict[str, str], dict[str, list[int]]]:
        """(pid -> path of that of its cgroups which was stopped for longest, path -> what its quota did).

        The latter: quota and period in us, periods in which something ran, in how many of them the quota was used up,
        and us for which CPUs were stopped, version of the hierarchy. Cgroups that were not stopped are left out.
        """
        now: dict[str, _Counts] = {}
        of_pid, of_path = {}, {}
        for pid in pids if self._before else ():
            directories = [directory for directory, _ in self._with_quota(pid) if directory in self._before]
            now |= {each: _since(self._before[each], _counts(each)) for each in directories if each not in now}
            most = max(directories, key=lambda each: now[each].stopped_us, default=None)
            quota = _quota(most) if most is not None else None
            if most is not None and quota and now[most].throttled:
                counts, path = now[most], self._path_of[most]
                of_pid[str(pid)] = path
                version = 2 if _words(most, _MAX) else 1
                of_path[path] = [*quota, counts.periods, counts.throttled, counts.stopped_us, version]
        return of_pid, of_path

    def _with_quota(self, pid: Pid) -> list[tuple[str, str]]:
        """(directory, path in the hierarchy) of each of its cgroups that has one."""
        if self._hierarchy is None:
            return []
        top, found = self._hierarchy, directories_above(self._hierarchy, pid)
        below = ((each, os.path.relpath(each, top.directory)) for each in found if _quota(each))
        paths = ((it, os.path.normpath(os.path.join(top.path, name))) for it, name in below)
        return [(it, without_controls(os.fsencode(path))) for it, path in paths]


def cpus_of(pid: Pid) -> float:
    """CPUs that it may use at a time, 1.5 for a quota of one and a half; 0 when it is gone.

    Quotas: cpu.max of v2, cpu.cfs_quota_us of v1, in microseconds of a period (cgroup-v2.rst, sched-bwc.rst of Linux).
    """
    try:
        found = [float(len(os.sched_getaffinity(pid)))]
    except OSError:
        return 0.0
    hierarchy = hierarchy_of("cpu")
    quotas = map(_quota, directories_above(hierarchy, pid) if hierarchy else ())
    return min([*found, *(quota / period for quota, period in filter(None, quotas))])


def _quota(directory: str) -> tuple[int, int] | None:
    """Microseconds of CPU time in a period, and of that; None: there is none."""
    words = _words(directory, _MAX) or [*_words(directory, _QUOTA), *_words(directory, _PERIOD)]
    if len(words) == 2 and all(word.isdigit() and int(word) for word in words):  # "max" or -1: no quota
        return int(words[0]), int(words[1])
    return None


def _counts(directory: str) -> _Counts:
    """By cpu.stat; zeros where the cgroup is gone."""
    words = _words(directory, "cpu.stat")
    told = {name: int(value) for name, value in zip(words[::2], words[1::2]) if value.isdigit()}
    stopped_us = told.get("throttled_usec", told.get("throttled_time", 0) // 1000)  # of v2, and of v1 in ns
    return _Counts(told.get("nr_periods", 0), told.get("nr_throttled", 0), stopped_us)


def _since(before: _Counts, now: _Counts) -> _Counts:
    return _Counts(
        max(0, now.periods - before.periods),
        max(0, now.throttled - before.throttled),
        max(0, now.stopped_us - before.stopped_us),
    )


def _words(directory: str, name: str) -> list[str]:
    try:
        with open(os.path.join(directory, name)) as file:
            return file.read(4096).split()
    except OSError:
        return []
