"""Fronts in Python of a C++ worker that waits for a block device: device_front.py CGROUP LIBRARY DEVICE...

A process for each device, in a control group for which these are slow to write (tests/oracles/limits.py). A batch takes
100 ms, of which the worker is 85 in an ioctl() and 15 on the CPU, while its front works 20 at the last one. Several
processes share a lock, under which each asks its device for a part. Prints "ready" when all are under way; ends with
its stdin. One process then prints the parts of its time, in percent, that its front waited and that the device took,
since the first line on its stdin.
"""

import ctypes
import os
import select
import sys
import tempfile
import time

from lifetime import die_with_input, die_with_parent
from priority import go_first

BYTES_PER_MS = 4 << 10  # of a device, on average: it makes up for the time in which it is asked for nothing
BATCH_MS, CPU_MS, FRONT_MS = 100, 15, 20
LOCKED_MS, SHARED_BATCH_MS, SHARED_CPU_MS, SHARED_FRONT_MS = 11, 80, 1, 2  # of several, for which CPUs are no matter


def train(library, front_ms, is_asked=True):
    """is_asked: whether its standard input says since when it counts, and ends it."""
    began, waited, asked_ns = time.monotonic(), 0.0, library.worker_device_ns()
    while (said := heard() if is_asked else None) != b"":
        if said:
            began, waited, asked_ns = time.monotonic(), 0.0, library.worker_device_ns()
        begun = time.monotonic()
        batch = library.worker_take()
        waited += time.monotonic() - begun
        step(front_ms, batch)
    took = time.monotonic() - began
    print(100 * waited / took, (library.worker_device_ns() - asked_ns) / took / 1e7, flush=True)


def heard():
    """What came on standard input, b"" at its end; None: nothing."""
    return os.read(0, 4096) if select.select([0], [], [], 0)[0] else None


def step(front_ms, _batch):
    end = time.thread_time() + front_ms / 1000
    while time.thread_time() < end:
        pass


def start(library, device, lock, batch_ms, locked_ms, cpu_ms):
    sizes = (ctypes.c_uint64(batch_ms * BYTES_PER_MS), ctypes.c_uint64(locked_ms * BYTES_PER_MS))
    assert not library.worker_start(device.encode(), lock.encode(), *sizes, ctypes.c_long(1000 * cpu_ms))
    for _ in range(3):
        library.worker_take()


def main():
    cgroup, library, *devices = sys.argv[1:]
    with open(os.path.join(cgroup, "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))
    library = ctypes.CDLL(library)
    library.worker_device_ns.restype = ctypes.c_long
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as shared:
        shared.truncate(4096)
        assert not library.worker_lock(shared.name.encode())
        if len(devices) == 1:
            start(library, devices[0], shared.name, BATCH_MS, 0, CPU_MS)
            print("ready", flush=True)
            train(library, FRONT_MS)
            return
        die_with_input()
        begun, says = os.pipe()
        for device in devices:
            if not os.fork():
                die_with_parent()
                start(library, device, shared.name, SHARED_BATCH_MS, LOCKED_MS, SHARED_CPU_MS)
                os.write(says, b".")
                train(library, SHARED_FRONT_MS, is_asked=False)
        for _ in devices:
            os.read(begun, 1)
    print("ready", flush=True)
    os.wait()


if __name__ == "__main__":
    go_first()
    main()
