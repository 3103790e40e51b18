"""What the running kernel is like: what programs may do in it, and numbers that are put into them.

Struct offsets come from the kernel's own type information; to look at that takes 20 ms and more, so they are kept
between runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from bpfprof import __version__
from bpfprof.dataclass import dataclass
from bpfprof.errors import UnsupportedError
from bpfprof.kernel import btf
from bpfprof.kernel.btf import KernelTypes, kernel_identity
from bpfprof.kernel.sources import NUMBERS
from bpfprof.private_cache import PrivateCache

# void *data, bool preempt, prev, next, unsigned int prev_state: see ebpf/off_cpu.bpf.c
_SCHED_SWITCH_PARAMETERS = 5
_CACHE = PrivateCache("", file_limit_bytes=1 << 16)


@dataclass(frozen=True)
class KernelFacts:
    """takes_pointer: see load_programs(); uses_links: load_call_programs(). numbers: in the order of NUMBERS."""

    takes_pointer: bool
    uses_links: bool
    numbers: tuple[int, ...]

    def number(self, name: str) -> int:
        """One of NUMBERS."""
        return self.numbers[NUMBERS.index(name)]


def kernel_facts() -> KernelFacts:
    """Of this kernel. Raises UnsupportedError without the kernel's type information, or when it is too old."""
    has_run_delay = keeps_run_delay()
    key = _key(has_run_delay)
    kept = _parse(_CACHE.load(key))
    if kept is None:
        kept = facts_of(KernelTypes(), has_run_delay)
        content = {"takes_pointer": kept.takes_pointer, "uses_links": kept.uses_links, "numbers": kept.numbers}
        _CACHE.store(key, json.dumps(content).encode())
    return kept


def facts_of(types: KernelTypes, has_run_delay: bool) -> KernelFacts:
    """Raises UnsupportedError for a kernel that is too old."""
    check_ring_buffer(types)
    numbers = kernel_numbers(types, has_run_delay)
    return KernelFacts(has_task_pointers(types), has_uprobe_links(types), tuple(numbers[name] for name in NUMBERS))


def _key(has_run_delay: bool) -> str:
    """Of this kernel, and of the code that asks."""
    host, makers = os.uname(), [Path(str(module)).read_bytes() for module in (__file__, btf.__file__)]
    parts = ["facts", __version__, host.release, host.version, host.machine, str(has_run_delay), *NUMBERS]
    return hashlib.sha256(b"\0".join([*(part.encode() for part in parts), *makers, kernel_identity()])).hexdigest()


def _parse(content: bytes | memoryview | None) -> KernelFacts | None:
    """None for anything else."""
    try:
        kept = json.loads(bytes(content or b""))
        numbers = tuple(int(number) for number in kept["numbers"])
        facts = KernelFacts(bool(kept["takes_pointer"]), bool(kept["uses_links"]), numbers)
        return facts if len(numbers) == len(NUMBERS) else None
    except (ValueError, AttributeError, TypeError, KeyError):
        return None


def kernel_version_code(release: str | None = None) -> int:
    """LINUX_VERSION_CODE of a release such as 6.18.44-cloud; the sublevel is capped at 255 as in the kernel."""
    numbers = [int(n) for n in re.findall(r"\d+", release or os.uname().release)[:3]] + [0, 0, 0]
    return numbers[0] << 16 | numbers[1] << 8 | min(numbers[2], 255)


def _preempt_count(types: KernelTypes) -> dict[str, int]:
    """How to get from a task to what its CPU is in the middle of: task -> its cfs_rq -> rq, a per-CPU variable.

    The variable is __preempt_count on x86-64, but from 6.2 to 6.14 a member of pcpu_hot. All 0: no way.
    """
    names = ("BP_OFFSET_TASK_CFS_RQ", "BP_OFFSET_CFS_RQ_RQ", "BP_RQ_TO_PREEMPT_COUNT")
    try:
        task = types.offset("task_struct", "se") + types.offset("sched_entity", "cfs_rq")
        distance = types.percpu_distance("runqueues", "__preempt_count")
        if not distance and (distance := types.percpu_distance("runqueues", "pcpu_hot")):
            distance += types.offset("pcpu_hot", "preempt_count")
        values = (task, types.offset("cfs_rq", "rq"), distance)
    except UnsupportedError:  # a kernel without groups of tasks
        values = (0, 0, 0)
    return dict(zip(names, values))


def check_ring_buffer(types: KernelTypes) -> None:
    """Raises UnsupportedError on a kernel too old for all of this: the youngest thing that has no second way."""
    if not types.has_name("BPF_FUNC_ringbuf_output"):
        raise UnsupportedError("this kernel has no BPF ring buffer, which Linux 5.8 brought", "run Linux 5.10 or later")


def has_task_pointers(types: KernelTypes) -> bool:
    """Whether programs may follow pointers to the current task, and functions of theirs take pointers.

    That is Linux 5.11 and 5.12; the helper that is asked for, and wanted, is of 5.15.
    """
    return types.has_name("BPF_FUNC_task_pt_regs")


def has_uprobe_links(types: KernelTypes) -> bool:
    """Whether one BPF link is of many uprobes, each with a cookie: Linux 6.6, BPF_TRACE_UPROBE_MULTI."""
    return types.has_name("BPF_TRACE_UPROBE_MULTI")


def _older_kernel(types: KernelTypes) -> dict[str, int]:
    """What ebpf/current_task.bpf.h and off_cpu.bpf.c do in another way on older kernels."""
    is_old = not has_task_pointers(types)
    state = 0
    # Asked for only where it may be missing: it takes 30 ms.
    if (
        kernel_version_code() < 5 << 16 | 18 << 8
        and types.parameters("btf_trace_sched_switch") < _SCHED_SWITCH_PARAMETERS
    ):
        # Renamed by commit 2f064a59a11f ("sched: Change task_struct::state") (in v5.14).
        state = types.offset("task_struct", "__state" if types.has_name("__state") else "state")
    stack = types.offset("task_struct", "stack") if is_old else 0
    return {"BP_OFFSET_TASK_STATE": state, "BP_OFFSET_TASK_STACK": stack}


def _delayed(types: KernelTypes) -> int:
    """Whether a thread that sleeps stays on its run queue for a while: commit 781773e3b680 ("sched/fair: Implement
    ENQUEUE_DELAYED") (in v6.12)."""
    if kernel_version_code() < 6 << 16 | 12 << 8:
        return 0
    return types.offset("task_struct", "se") + types.offset("sched_entity", "sched_delayed")


def keeps_run_delay() -> bool:
    """Whether the scheduler counts how long threads are on a run queue (CONFIG_SCHED_INFO, and not turned off).

    It also counts how often they came from there to a CPU, the third number of schedstat
    (Documentation/scheduler/sched-stats.rst): never, says a kernel that does not.
    """
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[2]) > 0
    except (OSError, IndexError, ValueError):
        return False


# What leads from a task to what its descriptors are of: a name -> struct and members.
_FILES = {
    "TASK_FILES": ("task_struct files",),
    "FILES_TABLE": ("files_struct fdt",),
    "TABLE_COUNT": ("fdtable max_fds",),
    "TABLE_FILES": ("fdtable fd",),
    "FILE_INODE": ("file f_inode",),
    "FILE_DATA": ("file private_data",),
    "INODE_MODE": ("inode i_mode",),
    "INODE_NUMBER": ("inode i_ino",),
    "SOCKET_SOCK": ("socket sk",),
    "SOCKET_TYPE": ("socket type",),
    "SOCK_FAMILY": ("sock __sk_common", "sock_common skc_family"),
    "SOCK_STATE": ("sock __sk_common", "sock_common skc_state"),
    "SOCK_PORT": ("sock __sk_common", "sock_common skc_num"),
    "SOCK_ADDRESS": ("sock __sk_common", "sock_common skc_rcv_saddr"),
    "SOCK_PEER": ("sock __sk_common", "sock_common skc_daddr"),
    "SOCK_PEER_PORT": ("sock __sk_common", "sock_common skc_dport"),
}


def _file_offsets(types: KernelTypes) -> dict[str, int]:
    """All 0 where the kernel lacks one; BP_OFFSET_SOCK_PEER6 is 0 without IPv6."""
    found = dict.fromkeys(["SOCK_PEER6", *_FILES], 0)
    try:
        found |= {name: sum(types.offset(*each.split()) for each in path) for name, path in _FILES.items()}
        found["SOCK_PEER6"] = types.offset("sock_common", "skc_v6_daddr") + found["SOCK_PEER"]
        found["SOCK_PEER6"] -= types.offset("sock_common", "skc_daddr")
    except UnsupportedError:
        pass
    return {f"BP_OFFSET_{name}": offset for name, offset in found.items()}


def kernel_numbers(types: KernelTypes, has_run_delay: bool) -> dict[str, int]:
    """NUMBERS by name: struct offsets in bytes.

    BP_OFFSET_TASK_RUN_DELAY is 0 without, BP_OFFSET_TASK_DELAYED where threads that sleep leave the run queue at once.
    BP_OFFSET_TASK_STATE is 0 where the tracepoint sched_switch tells the state.
    """
    run_delay = (
        types.offset("task_struct", "sched_info") + types.offset("sched_info", "run_delay") if has_run_delay else 0
    )
    numbers = {
        "BP_OFFSET_TASK_PID": types.offset("task_struct", "pid"),
        "BP_OFFSET_TASK_MM": types.offset("task_struct", "mm"),
        "BP_OFFSET_TASK_TGID": types.offset("task_struct", "tgid"),
        "BP_OFFSET_TASK_ON_RQ": types.offset("task_struct", "on_rq"),
        "BP_OFFSET_TASK_DELAYED": _delayed(types),
        "BP_OFFSET_TASK_EXEC": types.offset("task_struct", "se") + types.offset("sched_entity", "sum_exec_runtime"),
        "BP_OFFSET_TASK_RUN_DELAY": run_delay,
        "BP_OFFSET_TASK_FSBASE": types.offset("task_struct", "thread") + types.offset("thread_struct", "fsbase"),
    }
    return numbers | _preempt_count(types) | _older_kernel(types) | _file_offsets(types)
