"""Touches pages in one function, sleeps in another, and knows how many page faults and switches each had.

Prints "ready PID"; at a line on standard input it works, prints {"touch": [FAULTS, SWITCHES], "nap": ...} as the kernel
counted them for the process (getrusage: minor faults, and switches of both kinds), and at the next line it ends.
"""

import json
import mmap
import os
import resource
import sys
import time

ROUNDS, PAGES, NAPS = 20, 2000, 60
counts = {}


def touch():
    """A fault for each page: huge pages are refused."""
    memory = mmap.mmap(-1, PAGES * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, PAGES * mmap.PAGESIZE, mmap.PAGESIZE):
        memory[at] = 1
    memory.close()


def nap():
    for _ in range(NAPS):
        time.sleep(0.0002)


def counted(function):
    before = resource.getrusage(resource.RUSAGE_SELF)
    function()
    after = resource.getrusage(resource.RUSAGE_SELF)
    faults, switches = counts.setdefault(function.__name__, [0, 0])
    switches += after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
    counts[function.__name__] = [faults + after.ru_minflt - before.ru_minflt, switches]


print("ready", os.getpid(), flush=True)
sys.stdin.readline()
for _ in range(ROUNDS):
    counted(touch)
    counted(nap)
print(json.dumps(counts), flush=True)
sys.stdin.readline()
