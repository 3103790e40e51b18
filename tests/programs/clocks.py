"""The kernel's clocks of any thread of this process, read without giving the GIL away. Standard library only."""

import ctypes
import os
import threading
import time
from collections import namedtuple

# os.pread and its like give the GIL away, and what is read before and after them would not belong together.
LIBC = ctypes.PyDLL(None)
LIBC.pread.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long)
Times = namedtuple("Times", "wall_ns cpu_ns runqueue_ns")


def cpu_ns(tid):
    """CPU time of a thread of this process, also while it runs (schedstat lags by a tick then)."""
    return time.clock_gettime_ns(~tid << 3 | 6)  # CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED, linux/posix-timers.h


def name_thread(name):
    """Gives the calling thread the name that the kernel shows; returns its tid."""
    tid = threading.get_native_id()
    with open(f"/proc/self/task/{tid}/comm", "w") as comm:
        comm.write(name[:15])
    return tid


class ThreadClock:
    """Wall time, CPU time and time in the run queue of one thread."""

    def __init__(self, tid):
        self.tid = tid
        try:
            self.schedstat = os.open(f"/proc/self/task/{tid}/schedstat", os.O_RDONLY)
        except OSError:
            self.schedstat = -1  # a kernel without it

    def read_clocks(self):
        """The three at the same moment; from any thread."""
        before = self.read_schedstat()
        while True:
            times = Times(time.monotonic_ns(), cpu_ns(self.tid), before[0])
            after = self.read_schedstat()
            if before == after:  # the thread was not switched in meanwhile, so the three belong together
                return times
            before = after

    def read_schedstat(self):
        """Nanoseconds on the run queue (up to the last time it was given a CPU), and how often it was given one."""
        text = ctypes.create_string_buffer(64)
        LIBC.pread(self.schedstat, text, 63, 0)
        return tuple(map(int, text.value.split()[1:])) or (0, 0)


def subtract(left, right):
    return Times(*(a - b for a, b in zip(left, right)))


def add(left, right):
    return Times(*(a + b for a, b in zip(left, right)))
