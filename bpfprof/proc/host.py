"""How the host is set up, as far as it decides what can be recorded: files of /proc in, words out."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h


def is_in_pid_namespace() -> bool:
    """Whether pids here are not those that the kernel sees."""
    return os.stat("/proc/self/ns/pid").st_ino != _FIRST_PID_NAMESPACE


def has_other_clocks(offsets: str | None = None) -> bool:
    """Whether CLOCK_MONOTONIC here is not the kernel's, by time_namespaces(7): the text of timens_offsets."""
    lines = (_text("/proc/self/timens_offsets") if offsets is None else offsets).splitlines()
    return any(
        fields[:1] == ["monotonic"] and any(each != "0" for each in fields[1:]) for fields in map(str.split, lines)
    )


def setting(name: str) -> str:
    """A kernel setting by its sysctl name; "" where there is none, or it may not be read."""
    return _text(f"/proc/sys/{name.replace('.', '/')}").strip()


def hidden_processes(mounts: str | None = None) -> str:
    """The value of /proc's option hidepid by the text of /proc/self/mountinfo; "" when all processes show."""
    for line in reversed(
        (_text("/proc/self/mountinfo") if mounts is None else mounts).splitlines()
    ):  # the last one shows
        before, _, after = line.partition(" - ")
        fields, options = before.split(), after.rpartition(" ")[2].split(",")
        if len(fields) > 4 and fields[4] == "/proc" and after.startswith("proc "):
            values = [option.partition("=")[2] for option in options if option.startswith("hidepid=")]
            return values[0] if values and values[0] not in ("0", "off") else ""
    return ""


def cgroup_versions(cgroups: str | None = None) -> str:
    """v1, v2, or v1 and v2, by the text of /proc/self/cgroup; "none" without control groups (cgroups(7))."""
    lines = (_text("/proc/self/cgroup") if cgroups is None else cgroups).splitlines()
    has_v2 = any(line.startswith("0::") for line in lines)
    has_v1 = any(not line.startswith("0::") for line in lines)
    return " and ".join(["v1"] * has_v1 + ["v2"] * has_v2) or "none"


def shows_kernel_addresses() -> bool:
    """Whether /proc/kallsyms holds addresses; else all are 0."""
    try:
        with open("/proc/kallsyms", "rb") as file:
            return any(line[:16].strip(b"0") for line in file.read(64 << 10).splitlines()[:-1])
    except OSError:
        return False


def locked_memory_limit() -> str:
    """`ulimit -l` in words."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 10} KiB"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
