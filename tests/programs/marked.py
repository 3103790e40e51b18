"""Steps that a program marks: marked.py --told FILE. Each is 3 to 5 ms, a part of it in a nested mark.

Prints "ready PID"; when its standard input ends it writes FILE: begin and end of each step, on CLOCK_MONOTONIC.
"""

import argparse
import importlib.util
import json
import os
import time
from pathlib import Path

from lifetime import finished

# As a program does that has the file alone.
_SPEC = importlib.util.spec_from_file_location("marks", Path(__file__).parents[2] / "bpfprof" / "marks.py")
marks = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(marks)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--told", required=True)
    options = parser.parse_args()
    print("ready", os.getpid(), flush=True)
    told, number = [], 0
    while not finished(None, 0.0):
        begin = time.monotonic_ns()
        with marks.mark("step"):
            with marks.mark("load"):
                time.sleep(0.001 * (1 + number % 3))
            work(0.002)
        told.append((begin, time.monotonic_ns()))
        number += 1
    with open(options.told, "w") as file:
        json.dump(told, file)
    print("written", flush=True)


def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


if __name__ == "__main__":
    main()
