"""How many CPUs a process may use: by its affinity, and by the quotas of cgroups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bpfprof.model.ids import Pid
from bpfprof.proc import cgroups, cpu_limits
from bpfprof.proc.cgroups import Cgroup

OWN = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, OWN),
        ({"cpu.max": "max 100000"}, OWN),
        ({"cpu.max": "50000 100000"}, 0.5),
        ({"cpu.cfs_quota_us": "25000", "cpu.cfs_period_us": "100000"}, 0.25),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, OWN),
        ({"cpu.max": "1 0"}, OWN),
    ],
)
def test_the_least_counts(files: dict[str, str], cpus: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(cpu_limits, "hierarchy_of", lambda _: Cgroup("", "/", str(tmp_path)))
    monkeypatch.setattr(cpu_limits, "directories_above", lambda _top, _pid: [str(tmp_path)])
    assert cpu_limits.cpus_of(Pid(os.getpid())) == cpus


def stat_of(directory: Path, version: int, *values: int) -> None:
    periods, throttled, stopped_us = values
    stopped = f"throttled_usec {stopped_us}" if version == 2 else f"throttled_time {1000 * stopped_us}"
    text = f"nr_periods {periods}\nnr_throttled {throttled}\n{stopped}\nnr_bursts 0\n"
    (directory / "cpu.stat").write_text(f"usage_usec 99\n{text}" if version == 2 else text)


def quota_of(directory: Path, version: int, quota: str) -> None:
    if version == 2:
        (directory / "cpu.max").write_text(f"{'max' if quota == '-1' else quota} 100000\n")
    else:
        (directory / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (directory / "cpu.cfs_period_us").write_text("100000\n")


@pytest.mark.parametrize("version", [1, 2])
def test_what_quotas_did_since_the_first_look(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process's own cgroup and of those above it the one that stopped it for longest; of several, each its own."""
    paths = {100: "/pod/a", 101: "/pod/b", 102: "/free", 103: "/"}
    for path in (*paths.values(), "/pod"):
        (tmp_path / path[1:]).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(cpu_limits, "hierarchy_of", lambda _: Cgroup("", "/", str(tmp_path)))
    monkeypatch.setattr(cgroups, "_paths_of", lambda pid: {"": paths[pid]})
    pod, own = tmp_path / "pod", tmp_path / "pod/a"
    for directory, quota in ((pod, "150000"), (own, "20000"), (tmp_path / "free", "-1")):
        quota_of(directory, version, quota)
        stat_of(directory, version, 10, 5, 1000)
    limits = cpu_limits.CpuLimits()
    limits.begin(map(Pid, paths))
    assert limits.throttled(map(Pid, paths)) == ({}, {})
    stat_of(pod, version, 30, 12, 8000)
    stat_of(own, version, 40, 30, 501_000)
    of_pid, of_path = limits.throttled(map(Pid, paths))
    assert of_pid == {"100": "/pod/a", "101": "/pod"}
    assert of_path["/pod/a"] == [20000, 100000, 30, 25, 500_000, version]
    assert of_path["/pod"] == [150000, 100000, 20, 7, 7000, version]
    stat_of(pod, version, 90, 72, 600_000)
    assert limits.throttled([Pid(100)])[0] == {"100": "/pod"}


def test_a_quota_that_comes_to_light_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it did before it was first looked at is not counted."""
    (tmp_path / "late").mkdir()
    monkeypatch.setattr(cpu_limits, "hierarchy_of", lambda _: Cgroup("", "/", str(tmp_path)))
    monkeypatch.setattr(cgroups, "_paths_of", lambda _: {"": "/late"})
    quota_of(tmp_path / "late", 2, "20000")
    stat_of(tmp_path / "late", 2, 10, 10, 900)
    limits = cpu_limits.CpuLimits()
    limits.begin([])
    assert limits.throttled([Pid(100)]) == ({}, {})
    limits.begin([Pid(100)])
    stat_of(tmp_path / "late", 2, 11, 11, 1000)
    assert limits.throttled([Pid(100)])[1] == {"/late": [20000, 100000, 1, 1, 100, 2]}


def test_one_that_is_gone() -> None:
    assert cpu_limits.cpus_of(Pid((1 << 22) + 1)) == 0


def test_what_processes_may_use_is_known_of_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine has new ones all day. A pid that is given again is another's."""
    asked: list[int] = []
    monkeypatch.setattr(cpu_limits, "_NOTED_LIMIT", 3)
    monkeypatch.setattr(cpu_limits, "cpus_of", lambda pid: asked.append(pid) or 1.5)
    limits = cpu_limits.CpuLimits()
    limits.begin = lambda pids: None  # type: ignore[method-assign,assignment]
    for pids in ([1, 2], [1, 2, 3], [1, 2, 4]):
        limits.note(map(Pid, pids))
    assert limits.percents == {"2": 150, "3": 150, "4": 150} and asked == [1, 2, 3, 4]
    limits.note([Pid(4)])
    limits.note([Pid(2), Pid(4)])
    assert asked == [1, 2, 3, 4, 2] and list(limits.percents) == ["3", "4", "2"]
