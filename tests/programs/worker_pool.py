"""A ThreadPoolExecutor whose workers mostly wait: for work, in a sleep, and sometimes they compute.

Prints `ready PID`, and one line of JSON at the end. Runs for --seconds, or until standard input closes.
Standard library only; CPython 3.9 and newer.
"""

import argparse
import json
import os
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from lifetime import finished


def sleep_a_while(number):
    time.sleep(0.001 + number % 7 / 500)
    return number


def compute_a_while(number):
    return sum(value * value for value in range(2000 + number % 13 * 500))


def main():
    parser = argparse.ArgumentParser(description="A pool of threads that wait.")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seconds", type=float, help="run so long; default: until standard input closes")
    options = parser.parse_args()
    done_count = submitted = 0
    with ThreadPoolExecutor(options.workers) as pool:
        pending = set()
        print(f"ready {os.getpid()}", flush=True)
        started = time.monotonic()
        while not finished(options.seconds, started):
            while len(pending) < options.workers // 2:  # so half of the workers have no work
                task = compute_a_while if submitted % 5 == 0 else sleep_a_while
                pending.add(pool.submit(task, submitted))
                submitted += 1
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            done_count += len(done)
        wait(pending)
        print(json.dumps({"tasks": done_count, "seconds": time.monotonic() - started}), flush=True)
        os._exit(0)  # with all workers still there


if __name__ == "__main__":
    main()
