"""Runs another of these programs, and tells just before its end what the scheduler booked for each of its threads.

Usage: accounted.py PROGRAM [ARGUMENTS...]. After all that the program prints comes one line of JSON:
    {"pid": PID, "threads": {TID: [cpu_ns, runqueue_ns, CLOCK_MONOTONIC when it was looked at], ...}}
of all threads that are there when it ends, by their CPU clocks and schedstat, since their birth. Then the process ends
at once: no thread does anything of length after it was looked at, but it may get a CPU that it waited for. Standard
library only; CPython 3.9 and newer.
"""

import atexit
import ctypes
import json
import os
import runpy
import sys
import time
from pathlib import Path

from clocks import LIBC, cpu_ns


def tell_and_end(status=0):
    """From the first look to the end nothing here gives the GIL away, so Python threads stand still."""
    sys.stdout.flush()
    tids = [int(name) for name in os.listdir("/proc/self/task")]
    account = {"pid": os.getpid(), "threads": {tid: times_of(tid) for tid in tids}}
    line = (json.dumps(account) + "\n").encode()
    LIBC.write(1, line, len(line))
    LIBC._exit(status)


def times_of(tid):
    """The three at the same moment: it got no CPU meanwhile."""
    while True:
        before, cpu, now = runqueue_ns(tid), cpu_ns(tid), time.monotonic_ns()
        if runqueue_ns(tid) == before:
            return cpu, before, now


def runqueue_ns(tid):
    text = ctypes.create_string_buffer(64)
    file = LIBC.open(b"/proc/self/task/%d/schedstat" % tid, os.O_RDONLY)
    LIBC.pread(file, text, 63, 0)
    LIBC.close(file)
    return int(text.value.split()[1])


if __name__ == "__main__":
    del sys.argv[0]
    os._exit = tell_and_end
    atexit.register(tell_and_end)
    runpy.run_path(str(Path(__file__).with_name(sys.argv[0])), run_name="__main__")
