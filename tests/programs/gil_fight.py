"""Threads that fight for the GIL, and how long each really waited for it.

Usage: gil_fight.py N [--reader] [--sleeper] [--phases]

N threads (N at most 99) compute in Python without end, each in a function of its own name, hog_0, hog_1, ... They never
block but for the GIL, so what their wall time has beyond CPU and run queue is waiting for it.
--reader adds a thread whose function wants_gil reads a pipe that always has a byte: the call gives the GIL away and
never blocks, so for this thread the same is true.
--sleeper adds one whose function wants_gil_after_sleep sleeps for SLEEP_NS a round, to a deadline, without timer slack:
what a round takes beyond that, its CPU time and its time in the run queue is waiting for the GIL.
--phases: hog_0 works in the functions spin_a and spin_b in turn, PHASE_NS each.

Prints `ready PID`. Lines on standard input: `start` and `stop`, as in oracle.py; `stop` prints one line of JSON about
the window between them:
    {"threads": [{"tid", "name", "start_ns", "end_ns", "wall_ns", "cpu_ns", "runqueue_ns", "slept_ns", "gil_ns"}, ...],
     "phases": [[NAME, CLOCK_MONOTONIC when it began], ...]}
Ends when standard input closes. Standard library only; CPython 3.9 and newer.
"""

import argparse
import ctypes
import json
import os
import sys
import threading
import time
from types import FunctionType

from clocks import ThreadClock, name_thread, subtract

SLEEP_NS = 1_000_000
PHASE_NS = 50_000_000
PR_SET_TIMERSLACK = 29  # linux/prctl.h
PHASES = []  # (name of the function, when it began)


def spin_a(until_ns):
    total = 0
    while time.monotonic_ns() < until_ns:
        for number in range(200):
            total += number * number
    return total


def spin_b(until_ns):
    total = 0
    while time.monotonic_ns() < until_ns:
        for number in range(200):
            total += number ^ total
    return total


def hog():
    total = 0
    while True:
        for number in range(500):
            total += number * number


def hog_in_phases():
    while True:
        for spin in (spin_a, spin_b):
            began_ns = time.monotonic_ns()
            PHASES.append((spin.__name__, began_ns))
            spin(began_ns + PHASE_NS)


def named(function, name):
    """The same function under another name, of which its frames have it."""
    names = {"co_name": name, "co_qualname": name} if sys.version_info >= (3, 11) else {"co_name": name}
    return FunctionType(function.__code__.replace(**names), function.__globals__, name)


class Fighter(threading.Thread):
    """`slept_ns`: how long it was meant to sleep, with what began and ended in the sleep that is under way."""

    def __init__(self, name, function):
        super().__init__(name=name, daemon=True)
        self.function = function
        self.sleeps = 0
        self.sleep_began_ns = 0  # 0: it is not in a sleep
        self.measuring = threading.Event()

    def run(self):
        self.clock = ThreadClock(name_thread(self.name))
        self.measuring.set()
        self.function()

    def snapshot(self):
        """Atomic, for nothing in it gives the GIL away."""
        times = self.clock.read_clocks()
        slept_ns = self.sleeps * SLEEP_NS
        if self.sleep_began_ns:
            slept_ns += min(SLEEP_NS, times.wall_ns - self.sleep_began_ns)
        return times, slept_ns


def wants_gil():
    read_end, write_end = os.pipe()
    os.write(write_end, bytes(4096))
    while True:
        os.read(read_end, 1)
        os.write(write_end, b".")


def wants_gil_after_sleep():
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    this = threading.current_thread()
    while True:
        this.sleep_began_ns = time.monotonic_ns()
        time.sleep(SLEEP_NS / 1e9)
        this.sleep_began_ns = 0
        this.sleeps += 1


def report(fighters, before, after):
    threads = []
    for fighter, (first, slept_before_ns), (last, slept_ns) in zip(fighters, before, after):
        times, slept_ns = subtract(last, first), slept_ns - slept_before_ns
        account = dict(times._asdict(), tid=fighter.clock.tid, name=fighter.name, slept_ns=slept_ns)
        account["gil_ns"] = times.wall_ns - times.cpu_ns - times.runqueue_ns - slept_ns
        account.update(start_ns=first.wall_ns, end_ns=last.wall_ns)
        threads.append(account)
    return {"threads": threads, "phases": PHASES}


def main():
    parser = argparse.ArgumentParser(description="Threads that fight for the GIL.")
    parser.add_argument("count", type=int, help="how many that compute")
    parser.add_argument("--reader", action="store_true", help="one more that reads what is there")
    parser.add_argument("--sleeper", action="store_true", help="one more that sleeps for short")
    parser.add_argument("--phases", action="store_true", help="hog_0 computes in two functions in turn")
    parser.add_argument("--seconds", type=float, help="run so long; default: until standard input closes")
    options = parser.parse_args()
    fighters = []
    for number in range(options.count):
        function = hog_in_phases if options.phases and number == 0 else hog
        fighters.append(Fighter(f"hog-{number}", named(function, f"hog_{number}")))
    if options.reader:
        fighters.append(Fighter("reader", wants_gil))
    if options.sleeper:
        fighters.append(Fighter("sleeper", wants_gil_after_sleep))
    for fighter in fighters:
        fighter.start()
    for fighter in fighters:
        fighter.measuring.wait()
    print(f"ready {os.getpid()}", flush=True)
    if options.seconds is not None:
        time.sleep(options.seconds)
        os._exit(0)
    before = [fighter.snapshot() for fighter in fighters]
    for line in sys.stdin:
        now = [fighter.snapshot() for fighter in fighters]
        if line.strip() == "start":
            before = now
        elif line.strip() == "stop":
            print(json.dumps(report(fighters, before, now)), flush=True)
    os._exit(0)  # the others never end


if __name__ == "__main__":
    main()
