"""How much slower a program gets by being recorded, at some rates of context switches. Run as root.

Python threads hand a token on, and compute in between so much that there are so many switches a second (token_ring.py
--rate). The unit of work is a hop and what is computed for it.

The unprofiled twin is the same process a moment before and after: within one recording the programs are attached and
detached in turn, for a fifth of a second each, and each phase with them is compared to the mean of its two neighbours.
So both have the same memory and the same moment; another process would have another layout, and with bpfprof attached
to its neighbour it would run bpfprof's programs too.

Two threads on one CPU keep it busy. What counts is CPU time of the process for a hop, not wall time: what others take
of the CPU is not in it. All that bpfprof does in the kernel falls on one of the two threads, for each switch is out of
one and into the other. bpfprof itself drains its buffers on other CPUs meanwhile. Ten threads on all CPUs show what a
user sees: wall time for a hop, with bpfprof beside them.

Figures are medians over the rounds, with their quartiles, and how far the median can be off by chance (1.57 quartile
distances over the root of the rounds: the notch of a box plot, 95 %).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any

from figures import PROGRAMS, python, running, show

from bpfprof.capture.options import CaptureOptions
from bpfprof.capture.session import Session
from bpfprof.capture.stop import StopRequest
from bpfprof.capture.targets import Targets
from bpfprof.capture.watch import Watch
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.model.ids import Pid
from bpfprof.recording.writer import RecordingWriter

ROUNDS = 150
PHASE_S = 0.2
SETTLE_S = 0.02  # after attaching: the kernel's code is patched and the first stacks are new


@dataclass(frozen=True)
class Case:
    """A ring of threads that makes so many switches a second, on one CPU (by CPU time) or on all (by wall time)."""

    name: str
    threads: int
    rate: int
    on_one_cpu: bool

    def command(self, cpu: int) -> list[str]:
        ring = [python(), str(PROGRAMS / "token_ring.py"), "--threads", str(self.threads), "--rate", str(self.rate)]
        return [*ring, "--cpu", str(cpu)] if self.on_one_cpu else ring


CASES = (
    Case("at_10000_switches", 2, 10_000, True),
    Case("at_50000_switches", 2, 50_000, True),
    Case("of_10_threads_at_60000_switches", 10, 60_000, False),
)


class Target:
    """The ring, and what it did in a phase."""

    def __init__(self, process: subprocess.Popen[str], on_one_cpu: bool) -> None:
        self.process = process
        self.on_one_cpu = on_one_cpu

    def counts(self) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline()))

    def phase(self) -> tuple[float, float]:
        """(seconds a hop, switches a second), of CPU time or wall time."""
        time.sleep(SETTLE_S)
        before = self.counts()
        time.sleep(PHASE_S)  # the length of the phase
        after = self.counts()
        gone = {name: after[name] - before[name] for name in after}
        seconds = gone["cpu_ns"] / 1e9 if self.on_one_cpu else gone["seconds"]
        return seconds / gone["hops"], gone["switches"] / seconds


class Rounds(threading.Thread):
    """Attaches and detaches, and measures the target, while the main thread drains."""

    def __init__(self, watch: Watch, target: Target) -> None:
        super().__init__()
        self.watch, self.target, self.stop = watch, target, StopRequest()
        self.slowdowns: list[float] = []
        self.rates: list[float] = []

    def run(self) -> None:
        attachments, programs = self.watch.attachments, self.watch.kernel.programs()
        time.sleep(1)  # until the target is known and its stacks are seen
        try:
            attachments.close()
            before = self.target.phase()
            for _ in range(ROUNDS):
                attachments.attach_tracepoints(programs)
                attachments.attach_clock(programs, self.watch.options.rate_hz)
                recorded = self.target.phase()
                attachments.close()
                after = self.target.phase()
                self.slowdowns.append(100 * (recorded[0] / ((before[0] + after[0]) / 2) - 1))
                self.rates.append((before[1] + after[1]) / 2)
                before = after
        finally:
            self.stop.request()


def measure(case: Case, options: dict[str, Any]) -> None:
    """One case: prints the slowdown, its quartiles, and the rate that was reached without bpfprof."""
    cpus = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryFile() as file, running(*case.command(cpus[-1])) as process:
        if case.on_one_cpu:
            os.sched_setaffinity(0, set(cpus[:-1]) or set(cpus))
        targets = (Pid(process.pid),)
        kernel = KernelSide.start()
        watch = Watch.of(CaptureOptions(targets, **options), kernel, Targets.open(targets))
        rounds = Rounds(watch, Target(process, case.on_one_cpu))
        try:
            watch.start()
            session = Session(watch, RecordingWriter(file.fileno()))
            session.begin(rounds.stop)
            rounds.start()
            session.run(lambda _progress: None, rounds.stop)
            session.finish(rounds.stop)
        finally:
            watch.close()
            rounds.join()
        os.sched_setaffinity(0, cpus)
    name = f"slowdown_{case.name}"
    lower, median, upper = statistics.quantiles(rounds.slowdowns, n=4)
    show(name, median, "%")
    show(name + "_lower_quartile", lower, "%")
    show(name + "_upper_quartile", upper, "%")
    show(name + "_by_chance", 1.57 * (upper - lower) / ROUNDS**0.5, "%")
    rate_reached = statistics.median(rounds.rates)
    show(name + "_cost_of_a_switch", median / 100 * 1e9 / rate_reached, "ns")
    show(name + "_rate", rate_reached, "1/s")


def main() -> None:
    options = {"max_switches": int(sys.argv[1])} if len(sys.argv) > 1 else {}
    for case in CASES:
        measure(case, options)


if __name__ == "__main__":
    main()
