"""Context switches, as many as possible: two threads on one CPU pass a byte to each other through two pipes.

One round trip is two switches. Prints `ready PID`, then one line of JSON for each line read from standard input and one
at the end, counted from `ready` on. Runs for --seconds, or until standard input closes. Standard library only.
"""

import argparse
import json
import os
import select
import sys
import threading
import time

PING, PONG = os.pipe(), os.pipe()
counter = [0]  # round trips; written by the ping thread only


def recurse(depth, function, *arguments):
    """Calls the function below `depth` more Python frames."""
    if depth > 0:
        return recurse(depth - 1, function, *arguments)
    return function(*arguments)


def ping(seconds_a_trip):
    next_trip = time.monotonic()
    while True:
        os.write(PING[1], b".")
        os.read(PONG[0], 1)
        counter[0] += 1
        if seconds_a_trip:
            next_trip += seconds_a_trip
            time.sleep(max(0, next_trip - time.monotonic()))


def pause(seconds_a_trip):
    while True:
        time.sleep(seconds_a_trip)
        counter[0] += 1


def pong():
    while True:
        os.read(PING[0], 1)
        os.write(PONG[1], b".")


def start(name, cpu, depth, function, *arguments):
    def run():
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as comm:
            comm.write(name)
        os.sched_setaffinity(0, {cpu})  # the calling thread alone
        recurse(depth, function, *arguments)

    threading.Thread(target=run, name=name, daemon=True).start()


def switch_counts():
    """Voluntary and involuntary context switches of all threads of this process."""
    counts = {"voluntary": 0, "nonvoluntary": 0}
    for tid in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{tid}/status") as status:
            for line in status:
                kind, _, value = line.partition("_ctxt_switches:")
                if kind in counts:
                    counts[kind] += int(value)
    return counts


def main():
    parser = argparse.ArgumentParser(description="Makes context switches and counts them.")
    parser.add_argument("--depth", type=int, default=0, help="Python frames above the two loops")
    parser.add_argument("--rate", type=float, help="round trips a second; default: as many as possible")
    parser.add_argument("--alone", action="store_true", help="one thread that only pauses: one switch a trip")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="default: the last one")
    parser.add_argument("--seconds", type=float, help="run so long; default: until standard input closes")
    options = parser.parse_args()
    sys.setrecursionlimit(options.depth + 1000)
    seconds_a_trip = 1 / options.rate if options.rate else 0
    if options.alone:
        start("pause", options.cpu, options.depth, pause, seconds_a_trip)
    else:
        start("pong", options.cpu, options.depth, pong)
        start("ping", options.cpu, options.depth, ping, seconds_a_trip)
    while not counter[0]:
        time.sleep(0.001)
    trips_before, switches_before, started = counter[0], switch_counts(), time.monotonic()
    print(f"ready {os.getpid()}", flush=True)

    def report():
        trips, switches = counter[0] - trips_before, switch_counts()
        delta = {kind: switches[kind] - switches_before[kind] for kind in switches}
        print(json.dumps({"round_trips": trips, "seconds": time.monotonic() - started, "switches": delta}), flush=True)

    if options.seconds is not None:
        select.select([], [], [], options.seconds)
    else:
        for _ in sys.stdin:
            report()
    report()
    os._exit(0)  # both threads are inside read()


if __name__ == "__main__":
    main()
