"""The text and the compiler flags that go to BCC.

BCC only makes programs of functions in its main file, so the sources are joined into one text; `#line` keeps the
compiler's messages pointing at the real files. Struct offsets come from BTF, the version from uname. A map is named by
its place in maps.bpf.h; the loader puts its descriptor there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from bpfprof.abi import ebpf_directory
from bpfprof.errors import UnsupportedError
from bpfprof.kernel.btf import KernelTypes

# BP_MAP(name, type, key type, value type, entries)
MAP_LINE = re.compile(r"^BP_MAP\((\w+), (\w+), (?:struct )?(\w+), (?:struct )?(\w+), (\w+)\)$", re.MULTILINE)
# A function that programs call: see ebpf/stack.bpf.h
_FUNCTION = re.compile(r"^(?:FUNCTION|REPEAT)\((\w+)[\w, /]*\)$", re.MULTILINE)
# The number of the first function; no helper of the kernel has one so high.
FIRST_FUNCTION = 0x7F000000
# void *data, bool preempt, prev, next, unsigned int prev_state: see ebpf/off_cpu.bpf.c
_SCHED_SWITCH_PARAMETERS = 5
_INCLUDE = re.compile(r'^#include "([\w./]+)"$', re.MULTILINE)


# Maps that each program type has its own of: MAP(walks) is perf_walks or sched_walks.
MAPS_BY_TYPE = ("walks", "cached_rules")


def maps_header(with_calls: bool = False) -> str:
    """The text of maps.bpf.h; with_calls: and of what has those for calls of libraries."""
    names = ("maps.bpf.h", "calls.bpf.h") if with_calls else ("maps.bpf.h",)
    return "".join((ebpf_directory() / name).read_text() for name in names)


def map_names(with_calls: bool = False) -> list[str]:
    """Names that programs know maps by; a map's number in the programs is its place here, from 1 on."""
    return [match[0] for match in MAP_LINE.findall(maps_header(with_calls))] + list(MAPS_BY_TYPE)


def function_names(text: str) -> list[str]:
    """Functions that programs call; a function's number in the programs is FIRST_FUNCTION and its place here."""
    return list(_FUNCTION.findall(text))


def join_includes(path: Path) -> str:
    """The file with each `#include "name"` replaced by that file of the same directory, each once."""
    seen: set[str] = set()

    def expand(name: str) -> str:
        seen.add(name)
        parts: list[str] = [f'#line 1 "{name}"\n']
        for number, line in enumerate((path.parent / name).read_text().splitlines(keepends=True), 1):
            match = _INCLUDE.match(line.rstrip("\n"))
            if match is None:
                parts.append(line)
            elif match[1] in seen:
                parts.append("\n")  # keeps the lines after it where they are
            else:
                parts += [expand(match[1]), f'#line {number + 1} "{name}"\n']
        return "".join(parts)

    return expand(path.name)


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
    return {"BP_HAS_TASK_POINTERS": int(not is_old), "BP_OFFSET_TASK_STATE": state, "BP_OFFSET_TASK_STACK": stack}


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


def compiler_flags(
    types: KernelTypes, has_run_delay: bool, functions: list[str], with_calls: bool = False
) -> list[str]:
    """-D flags: kernel version, struct offsets in bytes, numbers of the maps and functions.

    with_calls: of libraries they are counted (ebpf/calls.bpf.c); else nothing of that is compiled.

    BP_OFFSET_TASK_RUN_DELAY is 0 without, BP_OFFSET_TASK_DELAYED where threads that sleep leave the run queue at once.
    BP_OFFSET_TASK_STATE is 0 where the tracepoint sched_switch tells the state.
    """
    check_ring_buffer(types)
    run_delay = (
        types.offset("task_struct", "sched_info") + types.offset("sched_info", "run_delay") if has_run_delay else 0
    )
    defines = {
        "BP_KERNEL_VERSION_CODE": kernel_version_code(),
        "BP_OFFSET_TASK_PID": types.offset("task_struct", "pid"),
        "BP_OFFSET_TASK_MM": types.offset("task_struct", "mm"),
        "BP_OFFSET_TASK_TGID": types.offset("task_struct", "tgid"),
        "BP_OFFSET_TASK_ON_RQ": types.offset("task_struct", "on_rq"),
        "BP_OFFSET_TASK_DELAYED": _delayed(types),
        "BP_OFFSET_TASK_EXEC": types.offset("task_struct", "se") + types.offset("sched_entity", "sum_exec_runtime"),
        "BP_OFFSET_TASK_RUN_DELAY": run_delay,
        "BP_OFFSET_TASK_FSBASE": types.offset("task_struct", "thread") + types.offset("thread_struct", "fsbase"),
    }
    defines |= _preempt_count(types) | _older_kernel(types) | _file_offsets(types)
    defines |= {f"BP_FD_{name}": number for number, name in enumerate(map_names(with_calls), 1)}
    if with_calls:
        defines |= {"BP_WITH_CALLS": 1, "BP_HAS_UPROBE_LINKS": int(has_uprobe_links(types))}
    defines |= {f"BP_FUNCTION_{name}": number for number, name in enumerate(functions, FIRST_FUNCTION)}
    return [f"-D{name}={value}" for name, value in defines.items()]
