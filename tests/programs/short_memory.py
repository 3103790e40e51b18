"""Programs for which there is too little memory: short_memory.py KIND CGROUP, which it enters.

Prints a line when it is under way; ends with its stdin. The line that a verdict should name ends in `here: KIND`.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
import tempfile
import threading

SIZE = 192 << 20  # three times what the control group allows


def enter(cgroup: str) -> None:
    with open(os.path.join(cgroup, "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))


def mapped_file() -> None:
    """An index that is read here and there, of which a third has room."""
    with tempfile.NamedTemporaryFile(dir=".") as file:
        for _ in range(SIZE >> 20):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        with mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ) as index:
            index.madvise(mmap.MADV_RANDOM)
            print("ready", flush=True)
            while True:
                look_up(index)


def look_up(index: mmap.mmap) -> int:
    total = 0
    for _ in range(1000):
        total += index[random.randrange(SIZE)]  # here: mapped_file
    return total


if __name__ == "__main__":
    enter(sys.argv[2])
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), name="stdin", daemon=True).start()
    globals()[sys.argv[1]]()
