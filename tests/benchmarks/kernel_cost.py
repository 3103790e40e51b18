"""What the programs cost in the kernel, by the kernel's own run-time statistics. Run as root."""

from __future__ import annotations

import os
import time

from figures import PROGRAMS, RunTime, python, record_here, running, show

from bpfprof.kernel.bpf_syscall import enable_run_time_statistics

DEPTH = 30
BURN = """
import sys
def descend(n):
    if n: return descend(n - 1)
    print("ready", flush=True)
    while True:
        sum(i * i for i in range(50))
descend(%d)
"""


def measure(name: str, command: tuple[str, ...], program: str, seconds: float, pid: int = 0, rate_hz: int = 99) -> None:
    """Mean run time of one program while a target runs; `pid` 0: the command is the target."""
    with running(*command) as process:

        def during(programs: dict[str, int]) -> None:
            time.sleep(0.5)  # the first stacks of a target are new and cost more; they are not the steady state
            run_time = RunTime(programs[program])
            time.sleep(seconds)
            mean, runs = run_time.mean_ns()
            show(name, mean, "ns")
            show(name + "_runs", runs, "runs")

        record_here(pid or process.pid, 0.1, during, rate_hz)


def main() -> None:
    statistics = enable_run_time_statistics()
    # <module>, 28 x descend and the generator: 30 frames. At a high rate the kernel side stays in the caches; at 99 Hz
    # each sample finds them cold, most of all where the machine is shared.
    for rate_hz, seconds in ((4999, 4), (999, 5), (99, 10)):
        command = (python(), "-c", BURN % (DEPTH - 3))
        measure(f"on_cpu_sample_30_frames_at_{rate_hz}_hz", command, "on_cpu", seconds, rate_hz=rate_hz)
    switcher = (python(), str(PROGRAMS / "switcher.py"), "--depth", str(DEPTH - 5))
    measure("switch_out_and_in_30_frames", switcher, "sched_switch", 3)
    with running(python(), "-c", "print('ready', flush=True); import time; time.sleep(1000)") as sleeper:
        measure("switch_not_a_target", switcher, "sched_switch", 3, sleeper.pid)
        measure("waking_not_a_target", switcher, "sched_waking", 3, sleeper.pid)
    os.close(statistics)


if __name__ == "__main__":
    main()
