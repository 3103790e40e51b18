"""Profile and work -> the CPU limit of a control group that threads wait for, which is no lack of CPUs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from bpfprof.model.containers import container_of
from bpfprof.model.grouping import sums_by
from bpfprof.model.profile import CpuThrottle, Profile
from bpfprof.query.work.shares import NATIVE, PYTHON, READY
from bpfprof.query.work.table import Work

_FILES = {1: "cpu.cfs_quota_us", 2: "cpu.max"}
_UPDATED = ("docker", "podman", "nerdctl")  # engines with a command that sets the limit of a container
_UNIT = re.compile(r"[\w@.:-]+\.(?:service|scope|slice)", re.ASCII)


def cpu_throttle(profile: Profile, work: Work) -> tuple[CpuThrottle, int] | None:
    """The limit of the processes with most of the time ready, and for how long its threads worked or were ready.

    None: no limit stopped them.
    """
    rows, pids = work.rows, np.array([int(thread.pid) for thread in profile.threads] or [0], np.int64)
    throttles = profile.info.cpu_throttles
    groups = sorted({each.cgroup for each in throttles.values()})
    group_of = {pid: groups.index(each.cgroup) for pid, each in throttles.items()}
    group = np.array([group_of.get(pid, len(groups)) for pid in pids.tolist()], np.int64)[rows["thread"]]
    is_ready = rows["share"] == READY
    ready_ns = sums_by(group[is_ready], rows["ns"][is_ready], len(groups) + 1)
    most = int(ready_ns.argmax())
    if most == len(groups) or not ready_ns[most]:
        return None
    wanted = (group == most) & np.isin(rows["share"], (PYTHON, NATIVE, READY))
    found = next(each for each in throttles.values() if each.cgroup == groups[most])
    return found, int(rows["ns"][wanted].sum())


def stops_often(profile: Profile, work: Work) -> bool:
    """Whether it is a limit, not others, that threads which are ready wait for."""
    found = cpu_throttle(profile, work)
    return found is not None and found[0].stops_often


def limit_facts(profile: Profile, work: Work, duration_ns: int) -> dict[str, Any]:
    """Those of Facts that say something of such a limit."""
    found = cpu_throttle(profile, work)
    if found is None:
        return {}
    throttle, wanted_ns = found
    return {
        "limit_part": throttle.part,
        "limit_cpus": throttle.cpus,
        "limit_of": group_text(throttle),
        "limit_setting": _setting(throttle, max(1, round(10 * wanted_ns / max(duration_ns, 1))) / 10),
    }


def cpus_text(cpus: float) -> str:
    """So many, to three digits."""
    return f"{cpus:.3g} CPU{'s' * (cpus != 1)}"


def group_text(throttle: CpuThrottle) -> str:
    """The container, or the control group, that is limited."""
    container = container_of(throttle.cgroup)
    return container.label if container else f"control group {throttle.cgroup}"


def _setting(throttle: CpuThrottle, cpus: float) -> str:
    """What sets the limit, with a value of so many CPUs."""
    container, unit = container_of(throttle.cgroup), throttle.cgroup.rpartition("/")[2]
    if container and container.engine in _UPDATED:
        return f"{container.engine} update --cpus {cpus:g} {container.name[:12]}"
    if container and container.engine == "kubernetes":
        return f"resources.limits.cpu: {cpus:g}"
    if _UNIT.fullmatch(unit):
        return f"systemctl set-property {unit} CPUQuota={100 * cpus:.0f}%"
    return f"{_FILES.get(throttle.version, _FILES[2])} of {throttle.cgroup}, to {cpus_text(cpus)}"
