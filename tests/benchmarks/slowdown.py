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

Training loops are measured where a Python that has PyTorch is given: slowdown.py PYTHON. A hop is a step of them.
slowdown.py N takes the stacks of N switches a second at most.

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

ROUNDS, LOOP_ROUNDS = 150, 600  # of a loop's steps some are longer than others
PHASE_S = 0.2
SETTLE_S = 0.02  # after attaching: the kernel's code is patched and the first stacks are new


@dataclass(frozen=True)
class Case:
    """A program that tells its hops when it is asked; on one CPU (by CPU time), or on all (by wall time)."""

    name: str
    command: tuple[str, ...]
    on_one_cpu: bool
    rounds: int = ROUNDS


def ring(name: str, threads: int, rate: int, on_one_cpu: bool) -> Case:
    """Threads that make so many switches a second."""
    command = (python(), str(PROGRAMS / "token_ring.py"), "--threads", str(threads), "--rate", str(rate))
    return Case(name, (*command, *(("--cpu", str(last_cpu())) if on_one_cpu else ())), on_one_cpu)


def loop(torch_python: str, kind: str) -> Case:
    """A training loop on one thread, whose hops are its steps."""
    program = (str(PROGRAMS / "torch_operators.py"), kind, "--turns", "0", "--warm-up", "100")
    return Case(f"of_a_{kind}_loop", ("taskset", "-c", str(last_cpu()), torch_python, *program), True, LOOP_ROUNDS)


def last_cpu() -> int:
    return max(os.sched_getaffinity(0))


class Target:
    """The program, and what it did in a phase."""

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

    def __init__(self, watch: Watch, target: Target, count: int) -> None:
        super().__init__()
        self.watch, self.target, self.stop, self.count = watch, target, StopRequest(), count
        self.slowdowns: list[float] = []
        self.rates: list[float] = []

    def run(self) -> None:
        attachments, programs = self.watch.attachments, self.watch.kernel.programs()
        time.sleep(1)  # until the target is known and its stacks are seen
        try:
            attachments.close()
            before = self.target.phase()
            for _ in range(self.count):
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
    with tempfile.TemporaryFile() as file, running(*case.command) as process:
        if case.on_one_cpu:
            os.sched_setaffinity(0, set(cpus[:-1]) or set(cpus))
        targets = (Pid(process.pid),)
        kernel = KernelSide.start()
        watch = Watch.of(CaptureOptions(targets, **options), kernel, Targets.open(targets))
        rounds = Rounds(watch, Target(process, case.on_one_cpu), case.rounds)
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
    show(name + "_by_chance", 1.57 * (upper - lower) / case.rounds**0.5, "%")
    rate_reached = statistics.median(rounds.rates)
    if rate_reached > 1_000:  # of a few it says nothing
        show(name + "_cost_of_a_switch", median / 100 * 1e9 / rate_reached, "ns")
    show(name + "_rate", rate_reached, "1/s")


def main() -> None:
    options = {"max_switches": int(sys.argv[1])} if sys.argv[1:] and sys.argv[1].isdigit() else {}
    loops = [loop(each, kind) for each in sys.argv[1:] if not each.isdigit() for kind in ("transformer", "convnet")]
    rings = [
        ring("at_10000_switches", 2, 10_000, True),
        ring("at_50000_switches", 2, 50_000, True),
        ring("of_10_threads_at_60000_switches", 10, 60_000, False),
    ]
    for case in loops or rings:
        measure(case, options)


if __name__ == "__main__":
    main()
