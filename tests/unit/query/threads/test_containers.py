"""Containers by the names of their cgroups, and what each took."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpfprof.model.containers import container_of
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.profile import ThreadTime
from bpfprof.query.tables.groups import group_waits
from bpfprof.query.threads.containers import container_times
from bpfprof.render.containers import containers_block
from tests.unit.render.profiles import MS, ProfileBuilder, python, wait

ID, OTHER = "0123456789ab" + 52 * "c", "ba9876543210" + 52 * "d"
POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"


@pytest.mark.parametrize(
    ("cgroup", "label"),
    [
        (f"/docker/{ID}", "docker 0123456789ab"),
        (f"/docker/{ID}/init.scope", "docker 0123456789ab"),
        (f"/system.slice/docker-{ID}.scope", "docker 0123456789ab"),
        (f"/docker/{ID}/docker/{OTHER}", "docker ba9876543210"),
        (f"{POD}/cri-containerd-{ID}.scope", "containerd 0123456789ab"),
        (f"{POD}/crio-{ID}.scope", "crio 0123456789ab"),
        (f"/kubepods/burstable/pod1/{ID}", "kubernetes 0123456789ab"),
        (
            f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
            "podman 0123456789ab",
        ),
        ("/lxc.payload.web-1/system.slice/nginx.service", "lxc web-1"),
        ("/lxc/web-1", "lxc web-1"),
        ("/machine.slice/machine-sid\\x2droot.scope/payload", "machine sid-root"),
        (f"/machine.slice/libpod-conmon-{ID}.scope", None),
        ("/lxc.monitor.web-1", None),
        ("/system.slice/ssh.service", None),
        ("/process_api/5c35b3cb01aef1c4e3dced76667d3025", None),
        ("/", None),
        ("", None),
    ],
)
def test_containers_by_their_cgroups(cgroup: str, label: str | None) -> None:
    found = container_of(cgroup)
    assert (found.label if found else None) == label


def thread(pid: int, cgroup: str, on_cpu_ms: int, **more: object) -> ThreadTime:
    made = ThreadTime(Pid(pid), Tid(pid), f"p{pid}", "t", 0, 100 * MS, on_cpu_ms * MS, 0, (100 - on_cpu_ms) * MS, 1, 1)
    return replace(made, cgroup=cgroup, **more)


THREADS = (
    thread(10, f"/docker/{ID}", 20, namespace_pid=1),
    thread(11, f"/docker/{ID}", 30, namespace_pid=7),
    replace(thread(11, f"/docker/{ID}", 5, namespace_pid=7), tid=Tid(12)),
    thread(20, "/system.slice/ssh.service", 90),
    thread(30, "", 1, is_kernel_thread=True),
)


def test_sums_of_containers_and_their_processes() -> None:
    found = container_times(THREADS)
    assert [each.label for each in found] == ["/system.slice/ssh.service", "docker 0123456789ab", "kernel threads"]
    assert [each.is_container for each in found] == [False, True, False]
    docker = found[1]
    assert [(process.pid, process.thread_count) for process in docker.processes] == [(11, 2), (10, 1)]
    assert docker.sum_of("on_cpu_ns") == 55 * MS and docker.sum_of("off_cpu_ns") == 245 * MS


def test_both_pids_are_shown() -> None:
    lines = containers_block(THREADS)
    assert lines[3].split() == ["docker", "0123456789ab", "2", "3", "0.055", "0.000", "0.245"]
    assert lines[4].startswith("  p11 (11, 7 inside) ") and lines[5].startswith("  p10 (10, 1 inside) ")
    assert all(len(line) <= 100 for line in lines)


def test_nothing_is_said_where_there_is_one_cgroup() -> None:
    assert containers_block((thread(1, "/", 1), thread(2, "/", 2))) == []
    assert containers_block((thread(1, f"/docker/{ID}", 1),))


def test_a_long_list_is_cut_and_says_so() -> None:
    lines = containers_block(tuple(thread(n, f"/{'a' * 200}/{n % 20}", 1) for n in range(1, 200)))
    assert len(lines) < 80 and "and 8 more, together" in lines[-1] and "more processes" in lines[6]
    assert lines[1].startswith("…") and all(len(line) <= 100 for line in lines)


def test_waits_by_container() -> None:
    made = ProfileBuilder()
    for number, cgroup in enumerate((f"/docker/{ID}", f"/system.slice/docker-{ID}.scope", "/x")):
        made.wait(made.thread(number + 1), 10 * MS, [python("f"), wait("lock")])
        made.threads[number] = replace(made.threads[number], cgroup=cgroup)
    groups = group_waits(made.build(), "container", 5).groups
    assert [(group.total_ns, group.count) for group in groups] == [(20 * MS, 2), (10 * MS, 1)]
