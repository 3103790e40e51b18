"""Why the kernel refuses what a recording needs: the error of a system call in, a sentence and what helps out."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from bpfprof.errors import UnsupportedError
from bpfprof.kernel.bpf_syscall import VERIFIER_IS_DONE
from bpfprof.kernel.kernel_facts import kernel_version_code
from bpfprof.proc import host, privilege

_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOSYS)  # the last is what some seccomp filters answer
_LOCKDOWN = Path("/sys/kernel/security/lockdown")
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
# What verifiers, old and new, say of a helper that bpf_tracing_func_proto() withholds, kernel/trace/bpf_trace.c.
_READ_IS_REFUSED = re.compile(r"(?:unknown func|cannot use helper) bpf_probe_read_kernel\b")
# Whether maps and programs count against `ulimit -l`, before commit 5b29d26b3922 ("bpf: Eliminate rlimit-based memory
# accounting for bpf progs") and those around it (in v5.11).
COUNTS_LOCKED_MEMORY = kernel_version_code() < 5 << 16 | 11 << 8
_FORBIDS_ALL = 3  # of Debian's kernels; the kernel's own scale ends at 2


def is_forbidden(error: OSError) -> bool:
    """Whether it is a matter of privilege."""
    return error.errno in _FORBIDDEN


def refusal(what: str, error: OSError, verifier_log: str = "") -> UnsupportedError:
    """`what` the kernel refuses, such as "the BPF map threads", why, and what helps."""
    if _READ_IS_REFUSED.search(verifier_log):
        return _locked_down()
    if not is_forbidden(error) or VERIFIER_IS_DONE.decode() in verifier_log:  # the verifier's refusal is EACCES too
        return UnsupportedError(f"the kernel refuses {what} ({error.strerror})")
    lacking = privilege.missing(privilege.REQUIRED)
    if lacking:
        names = " and ".join(lacking)
        return UnsupportedError(
            f"only root, or who has {names}, may watch other programs", privilege.how_to_get(lacking)
        )
    told = f"{what} is forbidden ({error.strerror})"
    if "BPF" in what and (refused := locked_memory_refusal()):
        return refused
    if "perf event" in what and may_forbid_perf_events():
        return UnsupportedError(
            f"{told}: kernel.perf_event_paranoid is {perf_event_paranoid()}, so this kernel asks for CAP_SYS_ADMIN",
            "sudo sysctl kernel.perf_event_paranoid=2",
        )
    if privilege.has_seccomp_filter():
        return UnsupportedError(
            f"{told} by the seccomp filter of this container or service",
            "let it pass bpf, perf_event_open and pidfd_open (docker run --security-opt seccomp=unconfined)",
        )
    return UnsupportedError(
        f"{told} although no capability is missing: a security module such as SELinux forbids it",
        "sudo ausearch -m AVC -ts recent, or sudo dmesg, names the rule",
    )


def perf_event_paranoid() -> int:
    """The kernel's setting; -1, the most liberal, where there is none."""
    try:
        return int(_PARANOID.read_text())
    except (OSError, ValueError):
        return -1


def locked_memory_refusal() -> UnsupportedError | None:
    """Where BPF maps count as locked memory, it is limited, and this process may not lift the limit."""
    limit = host.locked_memory_limit()
    if not COUNTS_LOCKED_MEMORY or limit == "unlimited" or not privilege.missing(privilege.LOCKED_MEMORY):
        return None
    return UnsupportedError(
        f"ulimit -l is {limit}, which counts for BPF before Linux 5.11; without CAP_SYS_RESOURCE it stays",
        "ulimit -l unlimited as root, or LimitMEMLOCK=infinity of the service",
    )


def may_forbid_perf_events() -> bool:
    """Whether the setting is one at which some distributions' kernels forbid them to this process."""
    return perf_event_paranoid() >= _FORBIDS_ALL and bool(privilege.missing(privilege.PERF_EVENTS_AT_3))


def lockdown_mode(path: Path = _LOCKDOWN) -> str:
    """none, integrity or confidentiality; "" where the kernel has no such thing or does not tell.

    The file holds all three with the present one in brackets: lockdown_read(), security/lockdown/lockdown.c.
    """
    try:
        return path.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return ""


def check_lockdown(path: Path = _LOCKDOWN) -> str:
    """BPF programs must be able to read the kernel's memory, which one mode of lockdown forbids even to root."""
    mode = lockdown_mode(path)
    if mode == "confidentiality":
        raise _locked_down()
    if not mode:
        is_mounted = path.parent.is_dir() and any(path.parent.iterdir())
        return "none" if is_mounted else "not told, because securityfs is not mounted"
    return mode if mode == "none" else f"{mode}, which allows this"


def _locked_down() -> UnsupportedError:
    return UnsupportedError(
        "the kernel is locked down (confidentiality): BPF programs may not read its memory",
        "boot with lockdown=integrity or without lockdown=; nobody can lift it while the machine runs",
    )
