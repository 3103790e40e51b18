"""Recording on this kernel: a running program, waits alone, all processes, a launched one, and odd interpreters."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from os.path import exists
from pathlib import Path
from typing import Any

import pytest

from bpfprof.recording.reader import read_recording
from tests.kernel.conftest import (
    IS_EMULATED,
    PROGRAMS,
    RATE_HZ,
    READS_PYTHON,
    RECORD_S,
    SETTLED_S,
    SHORT_S,
    bpfprof,
    known,
)

_TARGET = str(PROGRAMS / "known.py")
_PYTHON = os.path.realpath(sys.executable)
_INTERPRETERS = {
    "loader": ("/lib64/ld-linux-x86-64.so.2", _PYTHON, _TARGET),
    "one-file": ("/opt/bpfprof/known",),
    "3.15": ("/usr/bin/python3.15", _TARGET),  # of a suite with another one of its own
}


@dataclass
class Recorded:
    """A recording of `known`: what was printed, the file, and what the program says of its CPU time."""

    summary: str
    file: Path
    shares: dict[str, float]

    @cached_property
    def stacks(self) -> dict[str, int]:
        """Collapsed stack without its process -> microseconds, once all unwind tables were there."""
        return self._collapsed("--time", f"{SETTLED_S}s..")

    def _collapsed(self, *options: str) -> dict[str, int]:
        text = bpfprof("report", self.file, "-f", "collapsed", *options)
        lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith("process "))
        return {stack.partition(";")[2]: int(weight) for stack, _, weight in lines}

    def on_cpu_from_the_start(self) -> dict[str, int]:
        """All of them: their innermost frames are right before there are tables, too."""
        return self._collapsed("--cpu")

    def on_cpu(self) -> dict[str, int]:
        """Those that do not end in a wait."""
        return {stack: weight for stack, weight in self.stacks.items() if not stack.rpartition(";")[2].startswith("[")}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, facts: dict[str, Any]) -> Iterator[Recorded]:
    file = tmp_path_factory.mktemp("kernel") / "known.bpfprof"
    with known() as (pid, process):
        summary = bpfprof("record", "--pid", str(pid), "-d", str(RECORD_S), "-r", str(RATE_HZ), "--details", "-o", file)
        end, _ = process.communicate("\n", timeout=300)
        yield Recorded(summary + bpfprof("report", file, "--details"), file, json.loads(end))


def matching(stacks: dict[str, int], *patterns: str) -> float:
    """Seconds of the stacks in which all patterns are found, in this order."""
    whole = re.compile(".*".join(patterns))
    return sum(weight for stack, weight in stacks.items() if whole.search(stack)) / 1e6


def test_all_time_is_accounted_for(recorded: Recorded) -> None:
    said = " ".join(recorded.summary.split())  # a line may end anywhere
    accounted = re.findall(r"quality: ([\d.]+)% of [\d.]+ s (?:wall time )?accounted", said)
    assert min(map(float, accounted)) > 99.9 and "none lost" in said, recorded.summary


def test_stacks_are_whole(recorded: Recorded) -> None:
    assert matching(recorded.stacks, r"\[truncated") < 0.05 * matching(recorded.stacks), recorded.summary


def test_native_functions_below_python_ones(recorded: Recorded) -> None:
    """The main thread, on a CPU in libcrypto: main (Python), digest (Python), then C functions."""
    python = (r"main \(known.py", r"digest \(known.py") if READS_PYTHON else ()
    in_c = matching(recorded.on_cpu(), *python, r"\(libcrypto\.so")
    assert in_c > 0.25 * matching(recorded.on_cpu()), recorded.summary


def test_shares_of_cpu_time(recorded: Recorded) -> None:
    """Within 12 points of the program's own account, which is of all the time: 6 standard deviations of 600 samples.

    There are that many at either rate: the program has a CPU for more than half of the time.
    """
    stacks = recorded.on_cpu_from_the_start()
    measured = matching(stacks, r"\(libcrypto\.so") / matching(stacks)
    told = recorded.shares["digest"] / sum(recorded.shares.values())
    assert abs(measured - told) < 0.12, (measured, told)


def test_waits_have_their_reasons(recorded: Recorded) -> None:
    stacks = recorded.stacks
    nap, wait = ((r"nap \(known.py",), (r"wait_for \(known.py",)) if READS_PYTHON else ((), ())
    assert matching(stacks, *nap, r"\[off-cpu: sleep\]$") > 0
    window_s = matching(stacks) / 2  # of two threads, one of which waits all the time
    assert window_s > 0.7 * (RECORD_S - SETTLED_S)
    assert abs(matching(stacks, *wait, r"\[off-cpu: lock\]$") - window_s) < 0.3 * window_s


def test_events_beside_the_clock(tmp_path: Path) -> None:
    """Each switch of a thread is an event and begins an interval off the CPU."""
    file = tmp_path / "events.bpfprof"
    with known() as (pid, _):
        bpfprof("record", "--pid", str(pid), "-d", str(SHORT_S), "-e", "cs", "-c", "1", "-o", file)
    with open(file, "rb") as stream:
        recording = read_recording(stream)
    # An emulated machine takes a while to begin with both, and to stop. Of short waits there are sums without times.
    begin_ns = recording.waits["time_ns"] - recording.waits["runqueue_ns"] - recording.waits["blocked_ns"]
    events_ns = recording.events["time_ns"]
    long_count = int(((events_ns.min() <= begin_ns) & (begin_ns <= events_ns.max())).sum())
    short_count = int(recording.short_waits["count"].sum())
    lines = bpfprof("report", file, "-f", "collapsed", "--event", "context-switches").splitlines()
    stacks = {stack: int(count) for stack, _, count in (line.rpartition(" ") for line in lines)}
    assert 0.9 * long_count - 10 <= sum(stacks.values()) <= 1.1 * (long_count + short_count) + 10
    assert not READS_PYTHON or any("nap (known.py" in stack for stack in stacks), stacks


def test_offcpu(tmp_path: Path) -> None:
    with known() as (pid, _):
        text = bpfprof("offcpu", "--pid", str(pid), "-d", str(SHORT_S), cwd=tmp_path)
    assert re.search(r"^sleep in " + (r"nap \(known\.py" if READS_PYTHON else ""), text, re.MULTILINE), text
    assert re.search(r"^waiting for a lock in", text, re.MULTILINE), text


def test_all_processes(tmp_path: Path) -> None:
    with known() as (pid, _):
        bpfprof("record", "--all", "-d", str(SHORT_S), "-o", tmp_path / "all.txt")
    processes = set(re.findall(r"^process .*? \((\d+)\);", (tmp_path / "all.txt").read_text(), re.MULTILINE))
    assert str(pid) in processes and len(processes) > 2, processes


def test_launched(tmp_path: Path) -> None:
    cpu_s = 4 if IS_EMULATED else 1  # longer than it takes there to find the interpreter of a new process
    program = f"import time\ndef work():\n while time.thread_time() < {cpu_s}: sum(range(1000))\nwork()"
    output = tmp_path / "launched.txt"
    bpfprof("record", "-o", output, "--", _PYTHON, "-c", program)
    assert ("work (" if READS_PYTHON else "process ") in output.read_text()


def test_odd_interpreters(tmp_path: Path) -> None:
    """Python started by the loader, a program that carries its Python, and another version of Python."""
    with ExitStack() as running:
        pids = {name: running.enter_context(known(*line))[0] for name, line in _INTERPRETERS.items() if exists(line[0])}
        options = [word for pid in pids.values() for word in ("--pid", str(pid))]
        said = bpfprof("record", *options, "-d", str(SHORT_S), "--details", "-o", tmp_path / "odd.txt")
    text = (tmp_path / "odd.txt").read_text()
    for name, pid in pids.items():
        found = "".join(re.findall(rf"^process .*? \({pid}\);.*$", text, re.MULTILINE))
        # The program carries a known.py of its own, so the other one is named with its folder.
        expected = r"digest \((programs/)?known\.py" if READS_PYTHON else "process "
        assert re.search(expected, found), (name, said, found)
