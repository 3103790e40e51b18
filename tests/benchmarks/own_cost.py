"""What bpfprof itself takes: CPU and memory on the training loop, and under 50,000 switches a second. Run as root."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import PROGRAMS, python, running, show

from bpfprof.recording.reader import read_recording

SECONDS = 10


def measure(name: str, command: tuple[str, ...]) -> None:
    """Records `command` with the real command line; CPU is counted from the first line it prints to its end."""
    with tempfile.TemporaryDirectory() as folder, running(*command) as target:
        output = Path(folder) / "x.bpfprof"
        bpfprof = [sys.executable, "-m", "bpfprof", "record", "--pid", str(target.pid), "-d", str(SECONDS)]
        process = subprocess.Popen([*bpfprof, "-o", str(output)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert process.stderr is not None
        process.stderr.readline()  # "recording ...": the kernel side is up
        start = _cpu_s(process.pid)
        time.sleep(SECONDS - 1)
        recorded_cpu = 100 * (_cpu_s(process.pid) - start) / (SECONDS - 1)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        with open(output, "rb") as file:
            recording = read_recording(file)
        show(f"{name}_own_cpu_while_recording", recorded_cpu, "%")
        own_s = usage.ru_utime + usage.ru_stime
        show(f"{name}_own_cpu_of_start_and_report", own_s - recorded_cpu / 100 * SECONDS, "s")
        show(f"{name}_own_memory_peak", usage.ru_maxrss / 1024, "MB")
        show(f"{name}_intervals", len(recording.waits) / SECONDS, "1/s")
        show(f"{name}_lost", sum(recording.end["lost"].values()), "events")
        show(f"{name}_recording_size", output.stat().st_size / 1e6 / SECONDS, "MB/s")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    measure("training_loop", (sys.executable, str(PROGRAMS / "training_loop.py")))
    measure("switches", (python(), str(PROGRAMS / "switcher.py"), "--depth", "10"))
    paced = (python(), str(PROGRAMS / "switcher.py"), "--depth", "10", "--rate", "25000")  # two switches a round trip
    measure("switches_50000", paced)


if __name__ == "__main__":
    main()
