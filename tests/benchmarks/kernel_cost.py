"""What the programs cost in the kernel, by the kernel's own run-time statistics. Run as root.

kernel_cost.py PYTHON, one that has PyTorch: of the training loops of torch_operators.py, all programs together.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from figures import PROGRAMS, RunTime, python, record_here, running, show

from bpfprof.kernel.attach import cpus

# <module>, descend and what it calls.
DESCEND = """
def descend(n):
    if n: return descend(n - 1)
    print("ready", flush=True)
    while True:
        %s
def key(x): return x
data = list(range(1000))
descend(%d)
"""
PYTHON_ONLY = DESCEND % ("sum(i * i for i in range(50))", 27)  # with the generator 30 frames
MIXED = DESCEND % ("sorted(data, key=key)", 17)  # 20 Python frames, and some 15 native ones around and between them


@contextmanager
def on_each_cpu(*command: str) -> Iterator[list[int]]:
    """One such program on each CPU, so that every sample is one of a target; yields their pids."""
    with ExitStack() as stack:
        pids = []
        for cpu in cpus("online"):
            process = stack.enter_context(running("taskset", "-c", str(cpu), *command))
            pids.append(process.pid)
        yield pids


def measure(name: str, pids: list[int], program: str, seconds: float, rate_hz: int = 99, native: bool = True) -> float:
    """Mean run time of one program while targets run; every switch has a stack."""
    means = []

    def during(programs: dict[str, int]) -> None:
        # The first stacks of a target are new, and all their code is identified: they are not the steady state.
        time.sleep(1.5)
        run_time = RunTime(programs[program])
        time.sleep(seconds)
        mean, runs = run_time.mean_ns()
        means.append(mean)
        show(name, mean, "ns")
        show(name + "_runs", runs, "runs")

    record_here(pids, 0.1, during, rate_hz, native, max_switches=0)
    return means[0]


def samples() -> None:
    """At a high rate the kernel side stays in the caches; at 99 Hz each sample finds them cold."""
    for rate_hz, seconds in ((4999, 4), (999, 5), (99, 10)):
        with on_each_cpu(python(), "-c", PYTHON_ONLY) as pids:
            measure(f"on_cpu_sample_30_python_frames_at_{rate_hz}_hz", pids, "on_cpu", seconds, rate_hz, native=False)
        with on_each_cpu(python(), "-c", MIXED) as pids:
            measure(f"on_cpu_sample_20_python_10_native_frames_at_{rate_hz}_hz", pids, "on_cpu", seconds, rate_hz)


def native_frames(folder: str) -> None:
    """What one native frame more costs: the difference between a deep stack and a shallow one."""
    program = f"{folder}/deep_stack"
    source = str(PROGRAMS / "deep_stack.c")
    subprocess.run(["cc", "-O2", "-fomit-frame-pointer", "-pthread", "-o", program, source], check=True)
    for rate_hz in (4999, 999, 99):
        means = []
        for depth in (5, 105):
            with on_each_cpu(program, "burn", str(depth)) as pids:
                name = f"on_cpu_sample_{depth}_calls_deep_at_{rate_hz}_hz"
                means.append(measure(name, pids, "on_cpu", 3 if rate_hz > 99 else 8, rate_hz))
        show(f"native_frame_on_cpu_at_{rate_hz}_hz", (means[1] - means[0]) / 100, "ns")
    means = []
    for depth in (5, 105):
        with running(program, "switch", str(depth)) as process:
            means.append(measure(f"switch_{depth}_calls_deep", [process.pid], "sched_switch", 3))
    show("native_frame_off_cpu", (means[1] - means[0]) / 100, "ns")


def without_stacks(programs: dict[str, int]) -> None:
    """Of so many switches hardly any has a stack."""
    time.sleep(0.5)
    run_time = RunTime(programs["sched_switch"])
    time.sleep(3)
    show("switch_out_and_in_without_a_stack", run_time.mean_ns()[0], "ns")


def switches() -> None:
    """Two threads that pass a byte to each other on one CPU: nearly every switch is out of one and into the other."""
    for native in (False, True):
        with running(python(), str(PROGRAMS / "switcher.py"), "--depth", "25") as process:
            name = "switch_out_and_in_30_python_frames" + ("_and_native" if native else "")
            measure(name, [process.pid], "sched_switch", 3, native=native)
    with running(python(), str(PROGRAMS / "switcher.py"), "--depth", "25") as process:
        record_here([process.pid], 0.1, without_stacks)
    with (
        running(python(), "-c", "print('ready', flush=True); import time; time.sleep(1000)") as sleeper,
        running(python(), str(PROGRAMS / "switcher.py"), "--depth", "25"),
    ):
        measure("switch_not_a_target", [sleeper.pid], "sched_switch", 3)
        measure("waking_not_a_target", [sleeper.pid], "sched_waking", 3)


def loops(torch_python: str) -> None:
    """In percent of the loop's time; they run on other CPUs, too."""
    for kind in ("transformer", "convnet"):

        def during(programs: dict[str, int], name: str = f"of_a_{kind}_loop") -> None:
            time.sleep(1.5)
            begin_s, run_times = time.monotonic(), [RunTime(fd) for fd in programs.values()]
            time.sleep(20)
            each = [mean * runs for mean, runs in (it.mean_ns() for it in run_times)]
            show(name, 1e-7 * sum(each) / (time.monotonic() - begin_s), "%")

        program = (str(PROGRAMS / "torch_operators.py"), kind, "--turns", "0", "--warm-up", "100")
        with running(torch_python, *program) as process:
            record_here([process.pid], 0.1, during)


def main() -> None:
    switch = Path("/proc/sys/kernel/bpf_stats_enabled")
    before = switch.read_text()
    switch.write_text("1")
    try:
        if sys.argv[1:]:
            loops(sys.argv[1])
            return
        samples()
        with tempfile.TemporaryDirectory() as folder:
            native_frames(folder)
        switches()
    finally:
        switch.write_text(before)


if __name__ == "__main__":
    main()
