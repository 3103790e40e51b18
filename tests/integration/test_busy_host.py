"""`record -a` on a host with 50 Python processes of several versions and 20 of C: whole stacks, at a bounded cost.

tests/benchmarks/whole_host.py measures the same for longer, with 2,000 threads too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from bpfprof.recording.reader import Recording, read_recording
from bpfprof.stacks.stitch import StackSource
from tests.integration.recorded import ALL_INTERPRETERS, BPFPROF, Folded, collapsed, needs_root, program, running

pytestmark = [needs_root, pytest.mark.skipif(shutil.which("cc") is None, reason="the programs are compiled with cc")]
SECONDS = 8
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")


@dataclass
class Host:
    """One recording of it. `python`, `native`: pids of the processes."""

    recording: Recording
    folded: Folded
    memory_mb: float
    python: list[int]
    native: list[int]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    path = tmp_path_factory.mktemp("busy") / "x.bpfprof"
    interpreters = [ALL_INTERPRETERS[version] for version in VERSIONS if version in ALL_INTERPRETERS]
    assert len(interpreters) >= 5, interpreters
    with running(sys.executable, program("crowd.py"), *interpreters) as crowd:
        pids = json.loads(crowd.first_line)
        command = [*BPFPROF, "record", "-a", "-d", str(SECONDS), "-o", str(path)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            memory_mb = 0.0
            while process.poll() is None:
                memory_mb = max(memory_mb, _peak_mb(process.pid))
                time.sleep(0.1)
        crowd.end()
    assert process.returncode == 0
    with open(path, "rb") as file:
        recording = read_recording(file)
    python = [int(pid) for pid in pids["python"]]
    return Host(recording, collapsed(path), memory_mb, python, pids["native"])


def _peak_mb(pid: int) -> float:
    """Of a process that runs; 0 when it has just ended. ru_maxrss would count the process it was forked from."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            return next((int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM:")), 0.0)
    except OSError:
        return 0.0


def test_samples_are_whole(host: Host) -> None:
    """Of these processes; nobody knows what else runs on the machine."""
    source, reasons, pids = StackSource(host.recording), Counter[str](), {*host.python, *host.native}
    for row in host.recording.samples:
        if host.recording.processes[host.recording.threads[row["thread"]].process].pid not in pids:
            continue
        stack = int(row["stack"])
        reasons[source.reason(int(source.statuses[stack]) if stack else int(row["status"]))] += 1
    print(dict(reasons))
    assert sum(reasons.values()) > 200
    assert reasons[""] >= 0.98 * sum(reasons.values())


def test_each_process_has_its_names(host: Host) -> None:
    """Those that sleep all the time, too."""
    lacking = [pid for pid in host.python if not {"main", "<module>"} <= host.folded.of_process(pid).functions()]
    assert not lacking
    assert all("do_turn" in host.folded.of_process(pid).functions() for pid in host.native)
    versions = {
        process.version.rpartition(".")[0] for process in host.recording.processes if process.pid in host.python
    }
    assert len(versions) >= 5, versions


def test_it_costs_little(host: Host) -> None:
    """The bounds leave room for other work on the machine; the benchmark has the figures."""
    start_ns, end = host.recording.start["start_ns"], host.recording.end
    first_s = (int(host.recording.samples["time_ns"].min()) - start_ns) / 1e9
    own = end["own_cpu_ns"] / (end["end_ns"] - start_ns)
    print(f"first sample after {first_s:.2f} s, own CPU {100 * own:.1f} %, {host.memory_mb:.0f} MB")
    assert first_s < 1 and host.memory_mb < 300
    assert own < 0.4, "looking at 70 processes for the first time is most of it, and at what else runs here"
    assert not end["lost"]
