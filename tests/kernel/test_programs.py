"""The BPF programs on this kernel: the verifier takes them with room to spare, and what a run of each costs."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.compiler import PROGRAMS
from bpfprof.kernel.kernel_side import KernelSide
from tests.kernel.conftest import known

_VERIFIER_LIMIT = 1_000_000  # BPF_COMPLEXITY_LIMIT_INSNS, include/linux/bpf.h, of all kernels since 5.2
_STATISTICS = 4  # BPF_LOG_STATS, include/linux/bpf_verifier.h


@pytest.mark.gate
def test_the_verifier_looks_at_less_than_it_may(monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]) -> None:
    looked_at: dict[str, list[int]] = {}
    load = bpf_syscall.program_load

    def program_load(*arguments: Any, **_: Any) -> int:
        log = ctypes.create_string_buffer(1 << 20)
        fd = load(*arguments[:5], log=log, log_level=_STATISTICS)
        processed = re.search(rb"processed (\d+) insns", log.value)
        assert processed is not None
        looked_at[arguments[2]] = [len(arguments[1]) // 8, int(processed[1])]
        return fd

    monkeypatch.setattr(bpf_syscall, "program_load", program_load)
    kernel = KernelSide.start()
    try:
        kernel.programs()
        kernel.event_program(1)
    finally:
        kernel.close()
    facts["programs"] = looked_at
    facts["kernel"], facts["python"] = os.uname().release, ".".join(map(str, sys.version_info[:3]))
    assert set(looked_at) == set(PROGRAMS)
    assert all(0 < count < 0.8 * _VERIFIER_LIMIT for _, count in looked_at.values()), looked_at


def test_what_a_run_costs(facts: dict[str, Any]) -> None:
    """Only that the programs ran: how long is for the table, and an emulated CPU is no measure."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    from figures import RunTime, record_here

    switch = Path("/proc/sys/kernel/bpf_stats_enabled")
    before = switch.read_text()
    costs = facts["costs_ns"] = {}

    def during(programs: dict[str, int]) -> None:
        times = {name: RunTime(fd) for name, fd in programs.items()}
        time.sleep(4)
        for name in ("on_cpu", "sched_switch", "sched_waking"):
            mean, runs = times[name].mean_ns()
            assert runs > 10, name
            costs[name] = round(mean)

    with known() as (pid, _):
        switch.write_text("1")
        try:
            record_here([pid], 0.1, during, rate_hz=499, max_switches=0)
        finally:
            switch.write_text(before)
