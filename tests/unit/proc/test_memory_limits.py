"""How often memory was at the limit of a control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfprof.model.ids import Pid
from bpfprof.proc import cgroups, memory_limits
from bpfprof.proc.cgroups import Cgroup
from bpfprof.proc.memory_limits import MemoryLimits, memory_there_is

PID, OTHER = Pid(100), Pid(101)


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Process 100 is in /a/b, 101 in the root."""
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.setattr(memory_limits, "hierarchy_of", lambda _: Cgroup("", "/", str(tmp_path)))
    monkeypatch.setattr(cgroups, "_paths_of", lambda pid: {"": "/a/b" if pid == PID else "/"})
    return tmp_path


def test_hits_of_a_cgroup_and_of_those_above_since_the_first_look(v2: Path) -> None:
    own, above = v2 / "a/b/memory.events.local", v2 / "a/memory.events.local"
    own.write_text("low 0\nhigh 5\nmax 7\noom 1\noom_kill 1\n")
    above.write_text("low 0\nhigh 0\nmax 0\n")
    limits = MemoryLimits()
    limits.begin([PID, OTHER])
    assert limits.hits([PID, OTHER]) == {}
    own.write_text("low 0\nhigh 6\nmax 10\noom 9\n")
    above.write_text("low 0\nhigh 0\nmax 2\n")
    assert limits.hits([PID, OTHER]) == {"100": 6}


def test_the_least_limit_of_a_cgroup_counts(v2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = v2 / "meminfo"
    meminfo.write_text("MemTotal:        2000000 kB\nMemFree:         1 kB\n")
    monkeypatch.setattr(memory_limits.os, "getpid", lambda: PID)
    (v2 / "a/b/memory.max").write_text("max\n")
    assert memory_there_is(str(meminfo)) == 2_048_000_000
    (v2 / "a/memory.max").write_text("536870912\n")
    assert memory_there_is(str(meminfo)) == 512 << 20
    assert memory_there_is(str(v2 / "nothing")) == 512 << 20


def test_v1_has_a_file_of_its_own(v2: Path) -> None:
    (v2 / "a/b/memory.failcnt").write_text("40\n")
    limits = MemoryLimits()
    limits.begin([PID])
    (v2 / "a/b/memory.failcnt").write_text("41\n")
    assert limits.hits([PID]) == {"100": 1}


def test_one_that_was_not_looked_at_before_says_nothing(v2: Path) -> None:
    (v2 / "a/b/memory.failcnt").write_text("40\n")
    assert MemoryLimits().hits([PID]) == {}
