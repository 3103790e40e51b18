"""How much slower an asyncio program of 54 tasks gets by a recording that looks at its tasks. Run as root.

CPU time of the program for a turn (tests/programs/busy_tasks.py), on a CPU of its own, while it is recorded and before
and after that, in turn: each phase with a recording is compared to the mean of its two neighbours. Figures are medians
over the rounds, with quartiles and how far the median can be off by chance, as in slowdown.py.

Options on the command line are given to `bpfprof record`: with --async-rate 0 no task is looked at.

Interpreters are those of BPFPROF_BENCH_PYTHONS (3.11=/usr/bin/python3.11,...), or pyenv's 3.11 to 3.13.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import PROGRAMS, running, show

ROUNDS, PHASE_S = 12, 3.0
SETTLE_S = 2.0  # what is new at the start of a recording is looked at; the first names come within two seconds
BPFPROF = str(Path(sys.executable).with_name("bpfprof"))


def pythons() -> dict[str, str]:
    """Version -> path."""
    given = os.environ.get("BPFPROF_BENCH_PYTHONS")
    if given:
        return dict(pair.split("=", 1) for pair in given.split(","))
    found = {
        version: sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        for version in ("3.11", "3.12", "3.13")
    }
    return {version: str(paths[-1]) for version, paths in found.items() if paths}


def ns_per_turn(process: subprocess.Popen[str]) -> float:
    """CPU time of a turn in a phase that begins now."""
    looks = []
    for wait_s in (PHASE_S, 0.0):
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        looks.append(json.loads(process.stdout.readline()))
        time.sleep(wait_s)  # the length of the phase
    return float((looks[1]["cpu_ns"] - looks[0]["cpu_ns"]) / (looks[1]["turns"] - looks[0]["turns"]))


def recorded_ns_per_turn(process: subprocess.Popen[str], folder: str, cpu: int) -> float:
    """The same while it is recorded; bpfprof is on another CPU."""
    options = ["--pid", str(process.pid), "-o", f"{folder}/x.bpfprof", *sys.argv[1:]]
    recorder = subprocess.Popen(
        ["taskset", "-c", str(cpu), BPFPROF, "record", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert recorder.stderr is not None
    recorder.stderr.readline()  # "recording ...": it has begun
    time.sleep(SETTLE_S)
    try:
        return ns_per_turn(process)
    finally:
        recorder.send_signal(2)
        recorder.communicate()


def main() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    for version, python in pythons().items():
        slowdowns = []
        command = ["taskset", "-c", str(cpus[-1]), python, str(PROGRAMS / "busy_tasks.py")]
        with tempfile.TemporaryDirectory() as folder, running(*command) as process:
            before = ns_per_turn(process)
            for _ in range(ROUNDS):
                recorded = recorded_ns_per_turn(process, folder, cpus[0])
                after = ns_per_turn(process)
                slowdowns.append(100 * (recorded / ((before + after) / 2) - 1))
                before = after
        lower, median, upper = statistics.quantiles(slowdowns, n=4)
        name = f"async_slowdown_{version}"
        show(name, median, "%")
        show(name + "_lower_quartile", lower, "%")
        show(name + "_upper_quartile", upper, "%")
        show(name + "_by_chance", 1.57 * (upper - lower) / ROUNDS**0.5, "%")


if __name__ == "__main__":
    main()
