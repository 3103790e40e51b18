"""Busy for --busy-ms of every --period-ms, in two functions in turn; with --threads that many more threads sleep.

Prints `ready PID` and runs until standard input closes. On CPython 3.6 and newer.
"""

import argparse
import os
import threading
import time

from lifetime import finished


def count(until):
    while time.monotonic() < until:
        sum(range(200))


def join(until):
    while time.monotonic() < until:
        ",".join(map(str, range(50)))


def turn(work, busy_s):
    work(time.monotonic() + busy_s)


def sleep_in_thread(started, period_s):
    started.release()
    while True:
        time.sleep(period_s)


def main():
    parser = argparse.ArgumentParser(description="Busy for a part of the time.")
    parser.add_argument("--busy-ms", type=float, default=2.0)
    parser.add_argument("--period-ms", type=float, default=100.0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--thread-period", type=float, default=5.0, help="seconds that each of the threads sleeps")
    options = parser.parse_args()
    started = threading.Semaphore(0)
    for _ in range(options.threads):
        threading.Thread(target=sleep_in_thread, args=(started, options.thread_period), daemon=True).start()
    for _ in range(options.threads):
        started.acquire()
    print("ready", os.getpid(), flush=True)
    begin, number = time.monotonic(), 0
    while not finished(None, begin):
        turn((count, join)[number % 2], options.busy_ms / 1000)
        number += 1
        time.sleep((options.period_ms - options.busy_ms) / 1000)


if __name__ == "__main__":
    main()
