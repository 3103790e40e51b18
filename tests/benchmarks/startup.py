"""How soon the first sample is there, from the start of the command, and what compiling and loading take. As root."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import python, running, show

from bpfprof.kernel.compiler import Compilation
from bpfprof.kernel.loader import load_programs
from bpfprof.kernel.tables import Tables
from bpfprof.private_cache import cache_directory
from bpfprof.recording.reader import read_recording

BUSY = "print('ready', flush=True)\nwhile True: pass"


def first_sample_s(pid: int, output: Path, command: list[str]) -> float:
    """Seconds from starting the command to the first sample in its recording."""
    start_ns = time.monotonic_ns()
    subprocess.run(
        [*command, "record", "--pid", str(pid), "-d", "0.3", "-o", str(output)], check=True, capture_output=True
    )
    with open(output, "rb") as file:
        return (int(read_recording(file).samples["time_ns"].min()) - start_ns) / 1e9


def compile_and_load_s() -> float:
    """Seconds from asking for the programs to having them in the kernel."""
    tables = Tables.create()
    start_s = time.monotonic()
    programs = load_programs(Compilation.start().result(), tables.fds, takes_pointer=True)
    seconds = time.monotonic() - start_s
    for fd in programs.values():
        os.close(fd)
    tables.close()
    return seconds


def main() -> None:
    command = [str(Path(sys.executable).with_name("bpfprof"))]
    runs = 7
    with tempfile.TemporaryDirectory() as folder, running(python(), "-c", BUSY) as target:
        for state in ("warm", "empty"):
            samples, loads = [], []
            for _ in range(runs):
                if state == "empty":
                    shutil.rmtree(cache_directory(), ignore_errors=True)
                samples.append(first_sample_s(target.pid, Path(folder) / "x.bpfprof", command))
                if state == "empty":
                    shutil.rmtree(cache_directory(), ignore_errors=True)
                loads.append(compile_and_load_s())
            for name, values in (("first_sample", samples), ("compile_and_load", loads)):
                show(f"{name}_{state}_cache_median", statistics.median(values), "s")
                show(f"{name}_{state}_cache_best", min(values), "s")


if __name__ == "__main__":
    main()
