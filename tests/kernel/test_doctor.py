"""`doctor` on this kernel: it says what the kernel allows, compared with what the kernel itself and dpkg say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.conftest import READS_PYTHON, bpfprof

pytestmark = pytest.mark.gate
_VERSION = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))


@pytest.fixture(scope="module")
def lines(facts: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Check -> (ok or limited, what it says)."""
    text = facts["doctor"] = re.sub(r"\n {10,}", " ", bpfprof("doctor"))
    found = re.findall(r"^(ok|limited|missing) +(\S.*?)  +(.*)$", text, re.MULTILINE)
    assert re.search(r"^bpfprof can record here", text, re.MULTILINE), text
    assert not any(verdict == "missing" for verdict, _, _ in found), text
    return {name: (verdict, told) for verdict, name, told in found}


def test_the_machine(lines: dict[str, tuple[str, str]]) -> None:
    assert lines["machine"] == ("ok", f"Linux {os.uname().release} on x86-64, {os.cpu_count()} CPUs")
    told = lines["kernel settings"][1]
    for name in ("perf_event_paranoid", "unprivileged_bpf_disabled"):
        assert f"{name} {Path('/proc/sys/kernel', name).read_text().strip()}" in told


def test_locked_memory(lines: dict[str, tuple[str, str]]) -> None:
    """It counts before Linux 5.11."""
    verdict, told = lines["locked memory"]
    assert verdict == "ok" and ("no limit for BPF since Linux 5.11" in told) == (_VERSION >= (5, 11)), told


def test_bcc(lines: dict[str, tuple[str, str]], facts: dict[str, Any]) -> None:
    facts["bcc"], facts["llvm"] = re.findall(r"^([\d.]+) with LLVM ([\d.]+)", lines["BCC"][1])[0]
    query = ("dpkg-query", "-W", "-f", "${Version}", "python3-bpfcc")
    package = subprocess.run(query, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert package.startswith(facts["bcc"]), package


def test_the_clock_and_the_counters(lines: dict[str, tuple[str, str]]) -> None:
    assert lines["clock"][0] == "ok"
    has_counters = Path("/sys/bus/event_source/devices/cpu").exists()
    verdict, told = lines["events"]
    assert (verdict == "ok") == has_counters == ("cycles" in told) and "page-faults" in told


def test_what_the_kernel_tells(lines: dict[str, tuple[str, str]]) -> None:
    counts = int(Path("/proc/self/schedstat").read_text().split()[2]) > 0
    assert (lines["run queue"][0] == "ok") == counts
    types = Path("/sys/kernel/btf/vmlinux").read_bytes()
    # A per-CPU variable of one of these names, which type information has where there is its section.
    has_count = b"\0.data..percpu\0" in types and (b"\0__preempt_count\0" in types or b"\0pcpu_hot\0" in types)
    assert (lines["who ends waits"][0] == "ok") == has_count


def test_the_self_test(lines: dict[str, tuple[str, str]]) -> None:
    _, told = lines["self-test"]
    assert "times add up" in told
    assert (f"Python {sys.version_info[0]}.{sys.version_info[1]} is not read yet" in told) == (not READS_PYTHON)
