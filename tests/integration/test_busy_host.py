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
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from bpfprof.stacks.stitch import StackSource
from tests.integration.recorded import (
    ALL_INTERPRETERS,
    BPFPROF,
    Folded,
    collapsed,
    needs_root,
    program,
    recording,
    running,
)
from tests.looks import Look

pytestmark = [
    needs_root,
    pytest.mark.skipif(shutil.which("cc") is None, reason="the programs are compiled with cc"),
]
SECONDS = 8
# 98.9% of 750 samples are whole, give or take 0.4%: by chance fewer than 98% are in one recording of 100, and of three
# times the samples in one of 40,000. Where others take the CPUs, the first look at so many processes is not over when
# the recording begins, nor when it should be.
WHOLE, FIRST_SAMPLE_S = 0.98, 1
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")


@dataclass
class Host:
    """One recording of it. `python`, `native`: pids of the processes."""

    recording: Recording
    folded: Folded
    memory_mb: float
    python: list[int]
    native: list[int]

    @cached_property
    def reasons(self) -> Counter[str]:
        """Why samples of these processes are not whole, "": they are. Nobody knows what else runs on the machine."""
        source, reasons, pids = StackSource(self.recording), Counter[str](), {*self.python, *self.native}
        for row in self.recording.samples:
            if self.recording.processes[self.recording.threads[row["thread"]].process].pid in pids:
                stack = int(row["stack"])
                reasons[source.reason(int(source.statuses[stack]) if stack else int(row["status"]))] += 1
        return reasons

    def whole(self) -> float:
        return self.reasons[""] / max(1, sum(self.reasons.values()))

    @property
    def first_sample_s(self) -> float:
        return (int(self.recording.samples["time_ns"].min()) - self.recording.start["start_ns"]) / 1e9


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Host]:
    """By how many times SECONDS."""
    interpreters = [ALL_INTERPRETERS[version] for version in VERSIONS if version in ALL_INTERPRETERS]
    assert len(interpreters) >= 5, interpreters

    @cache
    def host(times: int) -> Host:
        with running(sys.executable, program("crowd.py"), *interpreters) as crowd:
            pids = json.loads(crowd.first_line)
            path = tmp_path_factory.mktemp("busy") / "x.bpfprof"
            found = _recorded(path, times * SECONDS, [int(pid) for pid in pids["python"]], pids["native"])
            crowd.end()
        return found

    return host


def _recorded(path: Path, seconds: int, python: list[int], native: list[int]) -> Host:
    command = [*BPFPROF, "record", "-a", "-d", str(seconds), "-o", str(path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        memory_mb = 0.0
        while process.poll() is None:
            memory_mb = max(memory_mb, _peak_mb(process.pid))
            time.sleep(0.1)
    assert process.returncode == 0
    with open(path, "rb") as file:
        recording = read_recording(file)
    return Host(recording, collapsed(path), memory_mb, python, native)


def _peak_mb(pid: int) -> float:
    """Of a process that runs; 0 when it has just ended. ru_maxrss would count the process it was forked from."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            return next((int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM:")), 0.0)
    except OSError:
        return 0.0


def test_samples_are_whole(hosts: Callable[[int], Host], look: Look) -> None:
    def judge(times: int) -> None:
        host = hosts(times)
        print(dict(host.reasons))
        assert sum(host.reasons.values()) > 200
        assert host.whole() >= WHOLE

    look(judge)


def test_each_process_has_its_names(hosts: Callable[[int], Host], look: Look) -> None:
    """Those that sleep all the time, too. Those of C are on the CPU for 1% of 8 s: at 99 Hz one of 3,000 has no sample.

    Three of 20 have none in one of 20 million runs; where they wait is known of each.
    """

    def judge(times: int) -> None:
        host = hosts(times)
        lacking = [pid for pid in host.python if not {"main", "<module>"} <= host.folded.of_process(pid).functions()]
        assert not lacking
        of_native = [host.folded.of_process(pid).functions() for pid in host.native]
        assert all("main" in functions for functions in of_native)
        assert sum("do_turn" in functions for functions in of_native) >= len(of_native) - 2
        versions = {
            process.version.rpartition(".")[0] for process in host.recording.processes if process.pid in host.python
        }
        assert len(versions) >= 5, versions

    look(judge)


def test_it_costs_little(hosts: Callable[[int], Host], look: Look) -> None:
    """The bounds leave room for other work on the machine; the benchmark has the figures."""

    def judge(times: int) -> None:
        host = hosts(times)
        end = host.recording.end
        own = end["own_cpu_ns"] / (end["end_ns"] - host.recording.start["start_ns"])
        print(f"first sample after {host.first_sample_s:.2f} s, own CPU {100 * own:.1f} %, {host.memory_mb:.0f} MB")
        assert host.first_sample_s < FIRST_SAMPLE_S and host.memory_mb < 300
        assert own < 0.4, "looking at 70 processes for the first time is most of it, and at what else runs here"
        assert not end["lost"]

    look(judge)


def test_a_host_with_far_too_much_to_do(tmp_path: Path, look: Look) -> None:
    """Some 120 threads want a CPU, and processes are born all the time: it ends when it should.

    5 s take 6 to 10 s, and what came by then is read 14 to 36 s after the beginning. That was after 111 s as long
    as what reads for bpfprof waited for a CPU in 19 of 20 seconds, and so did threads of it that held its GIL.
    """
    path = tmp_path / "x.bpfprof"

    def judge(times: int) -> None:
        with recording("-a", "-d", 5 * times, "-o", path) as recorder:
            begin_s = time.monotonic()
            with running(sys.executable, program("storm.py"), *ALL_INTERPRETERS.values()) as storm:
                assert recorder.process.stderr is not None
                recorder.process.stderr.readline()  # its last line
                read_s = time.monotonic() - begin_s
                storm.end()
            assert recorder.end(None).returncode == 0
        with open(path, "rb") as file:
            found = read_recording(file)
        length_s = (found.end["end_ns"] - found.start["start_ns"]) / 1e9
        print(f"{length_s:.1f} s, read after {read_s:.1f} s")
        assert length_s < 25 * times and read_s < 60 * times

    look(judge)
