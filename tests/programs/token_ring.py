"""Threads in a ring that pass a token on: as many context switches as Python can make, or so many a second.

Each thread waits for its own lock and releases that of the next one (or reads a byte from its pipe and writes one into
that of the next). On a quiet machine 64 threads make some 100,000 hops and 300,000 switches a second.

--rate N: with so much computing between two hops that there are N switches in a second of CPU time. The amount is found
out before `ready`.

Prints `ready PID`, then for each line on standard input, and at the end, one line of JSON:
    {"hops", "seconds", "cpu_ns", "switches"}
of the program so far; seconds is CLOCK_MONOTONIC, cpu_ns that of the process.
Runs for --seconds, or until standard input closes. Standard library only; CPython 3.9 and newer.
"""

import argparse
import json
import os
import sys
import threading
import time

from clocks import name_thread

ADJUST_S = 0.25
MOST_SWITCHES_A_HOP = 4  # more are none of the ring's: others had the CPU, and more computing is no remedy


class Ring:
    """`work`: how many rounds of computing come before each hop."""

    def __init__(self, count, kind, cpu):
        self.hops = [0] * count
        self.work = 0
        self.cpu = cpu
        places = [self.lock_place() if kind == "lock" else self.pipe_place() for _ in range(count)]
        for number, (wait, _) in enumerate(places):
            wake = places[(number + 1) % count][1]
            threading.Thread(target=self.pass_on, args=(number, wait, wake), daemon=True).start()
        places[0][1]()

    @staticmethod
    def lock_place():
        lock = threading.Lock()
        lock.acquire()
        return lock.acquire, lock.release

    @staticmethod
    def pipe_place():
        read_end, write_end = os.pipe()
        return lambda: os.read(read_end, 1), lambda: os.write(write_end, b".")

    def pass_on(self, number, wait, wake):
        name_thread(f"ring-{number}")
        if self.cpu is not None:
            os.sched_setaffinity(0, {self.cpu})  # the calling thread alone
        hops = self.hops
        while True:
            wait()
            compute(self.work)
            hops[number] += 1
            wake()

    def counts(self):
        return {
            "hops": sum(self.hops),
            "seconds": time.monotonic(),
            "cpu_ns": time.process_time_ns(),
            "switches": switch_count(),
        }

    def set_rate(self, switches_a_second):
        """Finds the amount of work, by the time it takes in the ring."""
        self.work = 1
        for _ in range(12):
            before = self.counts()
            time.sleep(ADJUST_S)  # the length of a measurement
            after = self.counts()
            seconds = (after["cpu_ns"] - before["cpu_ns"]) / 1e9  # what others take of the CPU is not the ring's
            hops = max(1, after["hops"] - before["hops"])
            switches_a_hop = min(MOST_SWITCHES_A_HOP, (after["switches"] - before["switches"]) / hops)
            taken_s, wanted_s = seconds / hops, switches_a_hop / switches_a_second
            if abs(taken_s / wanted_s - 1) < 0.03:
                return
            round_s = self.seconds_a_round()
            self.work = max(1, self.work + int((wanted_s - taken_s) / round_s))

    @staticmethod
    def seconds_a_round():
        started = time.thread_time()
        compute(10_000)
        return (time.thread_time() - started) / 10_000


def compute(rounds):
    total = 0
    for number in range(rounds):
        total += number * number
    return total


def switch_count():
    """Context switches of all threads of this process so far."""
    count = 0
    for tid in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{tid}/status") as status:
            count += sum(int(line.split()[1]) for line in status if "_ctxt_switches:" in line)
    return count


def main():
    parser = argparse.ArgumentParser(description="Passes a token round a ring of threads.")
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--kind", choices=("lock", "pipe"), default="lock", help="what the threads wait for")
    parser.add_argument("--rate", type=float, help="switches a second; default: as many as possible")
    parser.add_argument("--cpu", type=int, help="all threads of the ring on this one; default: on any")
    parser.add_argument("--seconds", type=float, help="run so long; default: until standard input closes")
    options = parser.parse_args()
    ring = Ring(options.threads, options.kind, options.cpu)
    if options.rate:
        ring.set_rate(options.rate)
    print(f"ready {os.getpid()}", flush=True)
    if options.seconds is not None:
        time.sleep(options.seconds)
    else:
        for _ in sys.stdin:
            print(json.dumps(ring.counts()), flush=True)
    print(json.dumps(ring.counts()), flush=True)
    os._exit(0)  # the ring never ends


if __name__ == "__main__":
    main()
