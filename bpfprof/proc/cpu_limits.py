"""How many CPUs a process may use: its affinity, and the quotas of its control groups."""

from __future__ import annotations

import os

from bpfprof.model.ids import Pid
from bpfprof.proc.cgroups import directories_above, hierarchy_of


def cpus_of(pid: Pid) -> float:
    """CPUs that it may use at a time, 1.5 for a quota of one and a half; 0 when it is gone.

    Quotas: cpu.max of v2, cpu.cfs_quota_us of v1, in microseconds of a period (cgroup-v2.rst, sched-bwc.rst of Linux).
    """
    try:
        found = [float(len(os.sched_getaffinity(pid)))]
    except OSError:
        return 0.0
    hierarchy = hierarchy_of("cpu")
    for directory in directories_above(hierarchy, pid) if hierarchy else ():
        words = _words(directory, "cpu.max") or [
            *_words(directory, "cpu.cfs_quota_us"),
            *_words(directory, "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and all(word.isdigit() and int(word) for word in words):  # "max" or -1: no quota
            found.append(int(words[0]) / int(words[1]))
    return min(found)


def _words(directory: str, name: str) -> list[str]:
    try:
        with open(os.path.join(directory, name)) as file:
            return file.read(4096).split()
    except OSError:
        return []
