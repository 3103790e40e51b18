"""What the kernel side needs of a machine, one check each: a `Finding` out, or UnsupportedError for what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from bpfprof.dataclass import dataclass
from bpfprof.errors import UnsupportedError
from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.attach import Attachments, cpus
from bpfprof.kernel.btf import KernelTypes
from bpfprof.kernel.compiler import are_ready_made, check_bcc
from bpfprof.kernel.kernel_facts import check_ring_buffer, keeps_run_delay, kernel_facts
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.kernel.perf_events import EVENTS, is_hardware
from bpfprof.kernel.probes import check_probes
from bpfprof.kernel.refusals import (
    COUNTS_LOCKED_MEMORY,
    check_lockdown,
    is_forbidden,
    locked_memory_refusal,
    may_forbid_perf_events,
    refusal,
)
from bpfprof.proc import host, privilege

_BCC_LIMIT_S = 30
# Run in a process of its own, for it loads LLVM.
_ASK_BCC = """import re, sys
sys.path.append(sys.argv[1])
import bcc
print(bcc.__version__, *sorted(set(re.findall(r"libLLVM(?:-|\\.so\\.)(\\d+)", open("/proc/self/maps").read())))[:1])"""


@dataclass(frozen=True)
class Finding:
    """What was found. `limit` says what works with less ("" when nothing does), `fix` how to put it right."""

    text: str
    limit: str = ""
    fix: str = ""
    figures: str = ""  # for who wants to know it all


def check_host() -> None:
    """What can be told at once, before a recording: raises UnsupportedError where none is possible."""
    check_machine()
    check_namespace()
    check_lockdown()


def check_machine() -> Finding:
    """The frame walk knows x86-64 only."""
    if os.uname().machine != "x86_64":
        raise UnsupportedError(f"bpfprof does not know {os.uname().machine} yet; it needs x86-64")
    return Finding(f"Linux {os.uname().release} on x86-64, {len(cpus('online'))} CPUs")


def check_namespace() -> Finding:
    """Kernel and user space must mean the same by a pid and by a time."""
    if host.is_in_pid_namespace():
        raise UnsupportedError(
            "bpfprof runs inside a pid namespace, where pids are not those the kernel sees",
            "run it on the host, or its container with --pid=host; the programs it watches may be in containers",
        )
    if host.has_other_clocks():
        raise UnsupportedError(
            "bpfprof runs inside a time namespace, whose clock is not the one the kernel side reads",
            "run it on the host; the programs it watches may be in time namespaces",
        )
    return Finding(f"pids are the host's; cgroups {host.cgroup_versions()}")


def check_privilege() -> Finding:
    """The capabilities without which nothing is recorded."""
    lacking = privilege.missing(privilege.REQUIRED)
    if lacking:
        needs = [f"{each.name} ({each.purpose})" for each in privilege.REQUIRED if each.name in lacking]
        raise UnsupportedError(" and ".join(needs), privilege.how_to_get(lacking))
    return Finding(" and ".join(each.name for each in privilege.REQUIRED))


def check_other_users() -> Finding:
    """What it takes to look into programs of other users."""
    lacking = privilege.missing(privilege.OTHER_USERS)
    names = " and ".join(each.name for each in privilege.OTHER_USERS)
    if not lacking:
        return Finding(f"{names}: programs of every user can be read")
    limit = f"only programs of this user have names: {' and '.join(lacking)} missing"
    hidden, scope = host.hidden_processes(), host.setting("kernel.yama.ptrace_scope")
    if "CAP_SYS_PTRACE" in lacking and hidden:
        limit += f"; /proc hides other users' programs (hidepid={hidden})"
    if "CAP_SYS_PTRACE" in lacking and scope not in ("", "0"):
        limit += f"; kernel.yama.ptrace_scope = {scope} forbids the memory of one's own, too"
    return Finding("", limit, privilege.how_to_get(lacking))


def check_replaced_files() -> Finding:
    """/proc/PID/map_files."""
    lacking = privilege.missing(privilege.MAPPED_FILES)
    if lacking:
        limit = f"no names in files that were replaced or deleted while in use: {lacking[0]} missing"
        return Finding("", limit, privilege.how_to_get(lacking))
    return Finding("also those that were replaced or deleted while in use")


def check_kernel_names() -> Finding:
    """/proc/kallsyms."""
    if host.shows_kernel_addresses():
        return Finding("in /proc/kallsyms")
    restrict = host.setting("kernel.kptr_restrict")
    limit = "kernel frames have no names: /proc/kallsyms hides addresses"
    if restrict == "2":
        return Finding("", f"{limit} (kernel.kptr_restrict = 2)", "sudo sysctl kernel.kptr_restrict=1")
    return Finding(
        "",
        f"{limit} ({privilege.KERNEL_NAMES[0].name} missing)",
        privilege.how_to_get(privilege.missing(privilege.KERNEL_NAMES)),
    )


def check_settings() -> Finding:
    """Settings that people look at; they bind only who has no capabilities, or what is tried below says so."""
    names = ("kernel.perf_event_paranoid", "kernel.unprivileged_bpf_disabled")
    values = ", ".join(f"{name.partition('.')[2]} {host.setting(name) or 'not there'}" for name in names)
    limit = (
        "perf events may be forbidden, see below" if may_forbid_perf_events() else "no limit with these capabilities"
    )
    return Finding(f"{values}: {limit}")


def check_kernel_lockdown() -> Finding:
    """lockdown= of the kernel's command line, or what Secure Boot turned on."""
    return Finding(check_lockdown())


def check_seccomp() -> Finding:
    """A filter does not say what it forbids; it is tried."""
    return Finding("a filter is on; what is below works with it" if privilege.has_seccomp_filter() else "no filter")


def check_locked_memory() -> Finding:
    """`ulimit -l`."""
    limit = host.locked_memory_limit()
    if not COUNTS_LOCKED_MEMORY:
        return Finding(f"ulimit -l is {limit}: no limit for BPF since Linux 5.11")
    if refused := locked_memory_refusal():
        raise refused
    return Finding(f"ulimit -l is {limit}; bpfprof lifts it while it records")


def check_types() -> Finding:
    """Struct offsets."""
    types = KernelTypes()
    check_ring_buffer(types)
    return Finding("the kernel describes its types", figures=f"task_struct.pid at {types.offset('task_struct', 'pid')}")


def check_compiler() -> Finding:
    """BCC's version and its LLVM's, by importing it."""
    try:
        parent = os.path.dirname(check_bcc())
    except UnsupportedError:
        if not are_ready_made():
            raise
        return Finding("not there, and not needed: the programs for this kernel came with bpfprof")
    try:
        command = [sys.executable, "-I", "-c", _ASK_BCC, parent]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BCC_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(f"importing BCC takes more than {_BCC_LIMIT_S} s") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
        raise UnsupportedError(f"BCC cannot be imported: {reason}", "sudo apt-get install --reinstall python3-bpfcc")
    version, *llvm = done.stdout.split()
    return Finding(f"{version} with LLVM {llvm[0] if llvm else '(linked in)'}", figures=parent)


def check_run_queue() -> Finding:
    """Whether the scheduler says when a thread became ready."""
    if keeps_run_delay():
        return Finding("the scheduler counts how long threads wait for a CPU")
    return Finding("", "the moment a thread became ready is taken from its wake-up: the kernel keeps no run delay")


def check_wakers() -> Finding:
    """Whether what a CPU is in the middle of can be read."""
    if not kernel_facts().number("BP_RQ_TO_PREEMPT_COUNT"):
        return Finding("", "whether a thread or an interrupt ended a wait is guessed from the thread's system call")
    return Finding("the kernel tells threads from interrupts")


def kernel_side_findings(kernel: KernelSide) -> Iterator[tuple[str, Finding]]:
    """Compiles, loads and attaches all, and detaches it. Raises UnsupportedError."""
    attachments = Attachments()
    try:
        programs = kernel.programs()
        attachments.attach_tracepoints(programs)
        figures = f"{len(programs)} programs, {len(kernel.tables.fds)} maps, {len(attachments.fds)} tracepoints"
        yield (
            "BPF programs",
            Finding("loaded, and attached to raw tracepoints (tracefs is not needed)", figures=figures),
        )
        attachments.attach_clock(programs, 99)
        yield "clock", Finding("cpu-clock samples every CPU")
        yield "events", _events()
        yield "library calls", _library_calls()
    finally:
        attachments.close()


def _events() -> Finding:
    there = machine_events()
    told = f"record -e takes {', '.join(there)}"
    if any(map(is_hardware, there)):
        return Finding(told)
    return Finding("", f"no hardware counters, as in most virtual machines: {told}")


def _library_calls() -> Finding:
    try:
        check_probes()
    except UnsupportedError as error:
        return Finding("", f"record --cuda does not work: {error}", error.hint)
    return Finding("record --cuda can count those of CUDA, NCCL and HIP")


def check_events(names: tuple[str, ...]) -> None:
    """Raises UnsupportedError unless this machine has each event, and this user may count it."""
    for name in names:
        error = _event_error(name)
        if error is None:
            continue
        if is_forbidden(error):
            raise refusal(f"the perf event {name}", error) from error
        there = machine_events()
        has_counters = any(map(is_hardware, there))
        why = f"this machine cannot count {name} ({error.strerror})"
        if is_hardware(name) and not has_counters:
            why = (
                f"this machine has no hardware counters (a virtual machine without a PMU?), so {name} cannot be counted"
            )
        raise UnsupportedError(why, f"events that work here: {', '.join(there)}") from error


def machine_events() -> list[str]:
    """Names of EVENTS that this machine has and this user may count."""
    return [name for name in EVENTS if _event_error(name) is None]


def _event_error(name: str) -> OSError | None:
    try:
        bpf_syscall.perf_event_try(EVENTS[name], cpus("online")[0])
    except OSError as error:
        return error
    return None
