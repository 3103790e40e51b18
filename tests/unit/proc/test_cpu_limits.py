"""How many CPUs a process may use: by its affinity, and by the quotas of cgroups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bpfprof.model.ids import Pid
from bpfprof.proc import cpu_limits
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


def test_one_that_is_gone() -> None:
    assert cpu_limits.cpus_of(Pid((1 << 22) + 1)) == 0
