"""Threads of a Profile -> what each container, or else each cgroup, and each of their processes took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from bpfprof.dataclass import dataclass
from bpfprof.model.containers import container_of
from bpfprof.model.ids import Pid
from bpfprof.model.profile import ThreadTime

KERNEL_THREADS = "kernel threads"
NOT_KNOWN = "cgroup not known"


@dataclass
class ProcessTime:
    """Sums of the threads of one process, in nanoseconds."""

    pid: Pid
    name: str
    namespace_pid: int = 0
    thread_count: int = 0
    on_cpu_ns: int = 0
    runqueue_ns: int = 0
    off_cpu_ns: int = 0


@dataclass
class ContainerTime:
    """The processes of one container (or cgroup without one), those with most CPU time first."""

    label: str
    is_container: bool
    processes: list[ProcessTime] = field(default_factory=list)

    def sum_of(self, name: str) -> int:
        """Of a field over its processes."""
        return sum(getattr(process, name) for process in self.processes)


def container_label(thread: ThreadTime) -> str:
    """`docker 0123456789ab`, the path of a cgroup that is no container's, or that it is a kernel thread."""
    container = container_of(thread.cgroup)
    if container is not None:
        return container.label
    return thread.cgroup or (KERNEL_THREADS if thread.is_kernel_thread else NOT_KNOWN)


def container_times(threads: Iterable[ThreadTime]) -> list[ContainerTime]:
    """Those with most CPU time first."""
    found: dict[str, ContainerTime] = {}
    processes: dict[tuple[str, Pid, str], ProcessTime] = {}
    for thread in threads:
        label = container_label(thread)
        container = found.setdefault(label, ContainerTime(label, container_of(thread.cgroup) is not None))
        key = label, thread.pid, thread.process_name
        if key not in processes:
            processes[key] = ProcessTime(thread.pid, thread.process_name, thread.namespace_pid)
            container.processes.append(processes[key])
        process = processes[key]
        process.thread_count += 1
        for name in ("on_cpu_ns", "runqueue_ns", "off_cpu_ns"):
            setattr(process, name, getattr(process, name) + getattr(thread, name))
    for container in found.values():
        container.processes.sort(key=lambda process: (-process.on_cpu_ns, process.pid))
    return sorted(found.values(), key=lambda container: (-container.sum_of("on_cpu_ns"), container.label))
