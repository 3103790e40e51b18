"""What `record -a` takes and gives on a busy host (tests/programs/crowd.py), then with 2,000 threads. Run as root."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from figures import PROGRAMS, running, show

from bpfprof.model.ids import Pid
from bpfprof.proc import tasks
from bpfprof.recording.reader import read_recording
from bpfprof.stacks.stitch import StackSource

SECONDS = 30
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
_STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")


def pythons() -> list[str]:
    """pyenv's interpreters of these versions, one each."""
    found = [sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")) for version in VERSIONS]
    return [str(paths[-1]) for paths in found if paths]


def measure(name: str, threads: int) -> None:
    """One recording by the command line."""
    crowd = (sys.executable, str(PROGRAMS / "crowd.py"), "--threads", str(threads), *pythons())
    with tempfile.TemporaryDirectory() as folder, running(*crowd) as target:
        output = Path(folder) / "x.bpfprof"
        command_ns = time.monotonic_ns()
        command = [sys.executable, "-m", "bpfprof", "record", "-a", "-d", str(SECONDS), "-o", str(output)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert process.stderr is not None
        process.stderr.readline()  # "recording ...": all processes are watched
        begin, before, kernel_before_ns = time.monotonic(), _cpu_s(process.pid), _kernel_side_ns(process.pid)
        show(f"{name}_own_cpu_of_start", before, "s")
        show(f"{name}_command_to_recording", (time.monotonic_ns() - command_ns) / 1e9, "s")
        time.sleep(SECONDS - 3)
        seconds = time.monotonic() - begin
        show(f"{name}_own_cpu", 100 * (_cpu_s(process.pid) - before) / seconds, "% of a core")
        kernel_ns = _kernel_side_ns(process.pid) - kernel_before_ns
        show(f"{name}_kernel_side", kernel_ns / 1e7 / seconds, "% of a core")
        show(f"{name}_memory_while_recording", _peak_mb(process.pid), "MB")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        show(f"{name}_memory_peak_with_report", usage.ru_maxrss / 1024, "MB")
        with open(output, "rb") as file:
            recording = read_recording(file)
        first_ns = int(recording.samples["time_ns"].min())
        show(f"{name}_first_sample_after_start", (first_ns - recording.start["start_ns"]) / 1e9, "s")
        show(f"{name}_first_sample_after_command", (first_ns - command_ns) / 1e9, "s")
        show(f"{name}_samples", len(recording.samples), "")
        source, children = StackSource(recording), set(tasks.children(Pid(target.pid)))
        is_own = np.array([recording.processes[thread.process].pid in children for thread in recording.threads])
        for kind, rows in (("samples", recording.samples), ("waits", recording.waits)):
            rows = rows[is_own[rows["thread"]]]
            statuses = np.where(rows["stack"] > 0, source.statuses[rows["stack"]], rows["status"])
            texts, counts = np.unique([source.reason(status) for status in statuses.tolist()], return_counts=True)
            found = dict(zip(texts.tolist(), counts.tolist()))
            show(f"{name}_{kind}_complete", 100 * found.get("", 0) / len(rows), "%")
            print(f"  {found}")
        print(f"  lost {recording.end['lost']}, problems {recording.end['problems']}", flush=True)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _kernel_side_ns(pid: int) -> int:
    """Run time of all BPF programs that a process has loaded."""
    total_ns = 0
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            _, _, found = path.read_text().partition("run_time_ns:\t")
            total_ns += int(found.split()[0]) if found else 0
    return total_ns


def _peak_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    _STATISTICS.write_text("1")
    try:
        for name, threads in (("crowd", 0), ("crowd_2000_threads", 2000)):
            measure(name, threads)
    finally:
        _STATISTICS.write_text("0")


if __name__ == "__main__":
    main()
