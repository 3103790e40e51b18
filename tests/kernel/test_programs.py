"""The BPF programs on this kernel: the verifier takes them with room to spare, and what a run of each costs."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bpfprof import abi, private_cache
from bpfprof.elf.image import ElfImage
from bpfprof.kernel import bpf_syscall, kernel_facts
from bpfprof.kernel.btf import KernelTypes
from bpfprof.kernel.compiler import PROGRAMS, Compilation
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.kernel.probes import Probes
from tests.kernel.conftest import known

_VERIFIER_BUDGET = 150_000  # 0.15 s for each program before a recording begins; Linux allows a million
_STATISTICS = 4  # BPF_LOG_STATS, include/linux/bpf_verifier.h


@pytest.mark.gate
def test_the_verifier_looks_at_less_than_it_may(monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]) -> None:
    looked_at: dict[str, list[int]] = {}
    load = bpf_syscall.program_load

    def program_load(*arguments: Any, **_: Any) -> int:
        log = ctypes.create_string_buffer(1 << 20)
        fd = load(*arguments[:5], log=log, log_level=_STATISTICS)
        processed = re.search(rb"processed (\d+) insns", log.value)
        took = re.search(rb"verification time (\d+) usec", log.value)
        assert processed is not None and took is not None
        looked_at[arguments[2]] = [len(arguments[1]) // 8, int(processed[1]), int(took[1])]
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
    assert all(0 < count < _VERIFIER_BUDGET for _, count, _ in looked_at.values()), looked_at


# With a BPF link of many where the kernel has those, and with a perf event of each.
WAYS_OF_PROBES = [*[True] * kernel_facts.has_uprobe_links(KernelTypes()), False]


def mathematics() -> str:
    """Path of libm, which this Python has in its memory then; older ones are called libm-2.31.so."""
    ctypes.CDLL("libm.so.6")
    maps = Path("/proc/self/maps").read_text()
    return next(line.split()[-1] for line in maps.splitlines() if re.search(r"/libm[-.][\w.]*$", line))


@pytest.mark.parametrize("uses_links", WAYS_OF_PROBES)
def test_calls_of_a_library(uses_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With probes that count them stacks are walked by other programs, too: all are loaded."""
    library = shutil.copy(mathematics(), tmp_path)
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path / "cache")  # it keeps what a kernel can
    monkeypatch.setattr(kernel_facts, "has_uprobe_links", lambda _types: uses_links)
    kernel, tid = KernelSide.start(Compilation.start(with_calls=True)), threading.get_native_id()
    probes = Probes(kernel)
    try:
        kernel.programs()
        kernel.tables.set_config(0)
        kernel.tables.add_thread(tid, abi.pack("bp_thread", tgid=os.getpid(), first_ns=1))
        with ElfImage.open(library) as image:
            symbol = image.find_symbol("cbrt", dynamic_only=True)
            assert symbol is not None
            probes.add(image.fileno(), {image.offset_of(symbol.address) or 0: 7})
        function = ctypes.CDLL(library).cbrt
        for _ in range(5):
            function()
        key = abi.pack("bp_call_key", first_ns=1, tid=tid, function=7)
        found = bpf_syscall.map_lookup(kernel.tables.fds["call_sums"], key, abi.size("bp_call_sum"))
        opened = bpf_syscall.map_lookup(
            kernel.tables.fds["open_calls"], tid.to_bytes(4, "little"), abi.size("bp_calls")
        )
    finally:
        probes.close()
        kernel.close()
    assert kernel.uses_links == uses_links
    assert found is not None and opened is not None
    count, total_ns, max_ns, _ = struct.unpack_from("<QQQQ", found)
    assert count == 5 == sum(struct.unpack_from("<64I", found, 32))
    assert 0 < max_ns < total_ns < 10**9
    assert struct.unpack_from("<II", opened, 8) == (0, 0), "open, left"


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
