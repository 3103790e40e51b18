"""What the kernel lets this process do, as /proc/self tells it: capabilities, and filters that narrow them.

Which capability each step of a recording needs was found by leaving each out on Linux 6.18; CAP_BPF and CAP_PERFMON are
there since 5.8. The documents and the unit file are tested against CAPABILITIES.
"""

from __future__ import annotations

import os

from bpfprof.dataclass import dataclass

_FIRST_USER_NAMESPACE = 0xEFFFFFFD  # PROC_USER_INIT_INO, include/linux/proc_ns.h


@dataclass(frozen=True)
class Capability:
    """`number` is that of include/uapi/linux/capability.h, and so are those of others that include it."""

    name: str
    number: int
    purpose: str
    included_in: tuple[int, ...] = ()


_DAC_OVERRIDE, _SYS_ADMIN = 1, 21
REQUIRED = (  # nothing is recorded without them
    Capability("CAP_BPF", 39, "loading BPF programs", (_SYS_ADMIN,)),
    Capability("CAP_PERFMON", 38, "watching other programs", (_SYS_ADMIN,)),
)
OTHER_USERS = (  # programs of one's own user need neither
    Capability("CAP_SYS_PTRACE", 19, "which code other users' programs run"),
    Capability("CAP_DAC_READ_SEARCH", 2, "Python names in other users' memory, and their files", (_DAC_OVERRIDE,)),
)
KERNEL_NAMES = (Capability("CAP_SYSLOG", 34, "names of kernel functions"),)
MAPPED_FILES = (
    Capability("CAP_CHECKPOINT_RESTORE", 40, "files that were replaced while a program uses them", (_SYS_ADMIN,)),
)
CAPABILITIES = (*REQUIRED, *OTHER_USERS, *KERNEL_NAMES, *MAPPED_FILES)
# Debian's kernels ask for it at kernel.perf_event_paranoid 3, whoever has CAP_PERFMON: sys_perf_event_open() of its
# features/all/security-perf-allow-further-restriction-of-perf_event_open.patch, seen on 6.1.
PERF_EVENTS_AT_3 = (Capability("CAP_SYS_ADMIN", _SYS_ADMIN, "perf events where kernel.perf_event_paranoid is 3"),)
# perf_uprobe_event_init(), kernel/events/core.c of Linux 6.18; CAP_PERFMON is enough for older ones.
UPROBES = (Capability("CAP_SYS_ADMIN", _SYS_ADMIN, "probes of library functions, for record --cuda"),)
LOCKED_MEMORY = (Capability("CAP_SYS_RESOURCE", 24, "more locked memory, before Linux 5.11"),)


def missing(wanted: tuple[Capability, ...], status: str | None = None) -> list[str]:
    """Names of those that this process lacks, by the text of /proc/self/status; all of them in a user namespace."""
    if status is None:
        with open("/proc/self/status") as file:
            status = file.read()
        if is_in_user_namespace():
            return [each.name for each in wanted]
    held = int(_status_value(status, "CapEff") or "0", 16)
    return [each.name for each in wanted if not any(held >> bit & 1 for bit in (each.number, *each.included_in))]


def why_unreadable() -> str:
    """Of a process that runs, but of which /proc does not show the memory or mappings."""
    lacking = missing(OTHER_USERS)
    needs = f"bpfprof lacks {' and '.join(lacking)}" if lacking else "a security module or the kernel forbids it"
    return f"its memory may not be read: {needs}"


def is_in_user_namespace() -> bool:
    """Where capabilities do not count for what concerns the whole machine."""
    try:
        return os.stat("/proc/self/ns/user").st_ino != _FIRST_USER_NAMESPACE
    except OSError:  # a kernel without user namespaces
        return False


def has_seccomp_filter() -> bool:
    """Whether system calls of this process are filtered (proc(5): Seccomp)."""
    with open("/proc/self/status") as file:
        return _status_value(file.read(), "Seccomp") == "2"


def how_to_get(names: list[str]) -> str:
    """The command that gives this process the capabilities."""
    if is_in_user_namespace():
        return "run it as root outside of the user namespace, not in a rootless container"
    if os.geteuid() != 0:
        return "run it with sudo, or give it these capabilities (docs/hosts.md says how)"
    options = " ".join(f"--cap-add={name.removeprefix('CAP_')}" for name in names)
    return f"give them to this container: docker run {options}"


def _status_value(status: str, name: str) -> str:
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return ""
