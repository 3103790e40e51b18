"""Profile -> the block of containers and cgroups, with their processes by both pids."""

from __future__ import annotations

from bpfprof.model.profile import ThreadTime
from bpfprof.query.threads.containers import ContainerTime, ProcessTime, container_times
from bpfprof.render.columns import COLUMNS, padded, seconds_text, shortened
from bpfprof.render.header import counted
from bpfprof.render.labels import printable

_MAX_CONTAINERS, _MAX_PROCESSES = 12, 4
_NAME_COLUMNS = COLUMNS - 46


def containers_block(threads: tuple[ThreadTime, ...]) -> list[str]:
    """A line a container or cgroup and some of its processes; [] where all are in one, and that is none."""
    seen = [thread for thread in threads if thread.wall_ns or thread.accounted_ns]
    found = container_times(seen)
    if (
        len(found) < 2
        and not any(thread.namespace_pid for thread in seen)
        and not any(each.is_container for each in found)
    ):
        return []
    lines = [_row("container or cgroup", "processes", "threads", ("on-CPU s", "queue s", "off-CPU s"))]
    for container in found[:_MAX_CONTAINERS]:
        lines += _container_rows(container)
    rest = found[_MAX_CONTAINERS:]
    if rest:
        lines.append(
            f"and {len(rest):,} more, together {seconds_text(sum(row.sum_of('on_cpu_ns') for row in rest))} s on a CPU"
        )
    return lines


def _container_rows(container: ContainerTime) -> list[str]:
    label, count = printable(container.label), container.sum_of("thread_count")
    if len(label) > _NAME_COLUMNS and label.startswith("/"):
        label = "…" + label[1 - _NAME_COLUMNS :]  # the end of a path says more
    sums = [container.sum_of(name) for name in ("on_cpu_ns", "runqueue_ns", "off_cpu_ns")]
    lines = [_row(label, f"{len(container.processes):,}", f"{count:,}", [seconds_text(ns) for ns in sums])]
    shown = container.processes[:_MAX_PROCESSES]
    lines += [_process_row(process) for process in shown]
    hidden = len(container.processes) - len(shown)
    return [*lines, f"  and {counted(hidden, 'more process', 'more processes')}"] if hidden else lines


def _process_row(process: ProcessTime) -> str:
    inside = f", {process.namespace_pid} inside" if process.namespace_pid else ""
    times = [seconds_text(ns) for ns in (process.on_cpu_ns, process.runqueue_ns, process.off_cpu_ns)]
    name = f"  {shortened(printable(process.name) or '?', 30)} ({process.pid}{inside})"
    return _row(name, "", f"{process.thread_count:,}", times)


def _row(name: str, processes: str, threads: str, times: tuple[str, ...] | list[str]) -> str:
    on_cpu, runqueue, off_cpu = times
    first = padded(shortened(name, _NAME_COLUMNS), _NAME_COLUMNS)
    return f"{first} {processes:>9} {threads:>7} {on_cpu:>8} {runqueue:>8} {off_cpu:>9}"
