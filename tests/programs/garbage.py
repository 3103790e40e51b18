"""Makes reference cycles for a second of CPU time; only the collector of garbage can find and finalize them."""

import gc
import time


class Cycle:
    def __init__(self):
        self.me = self

    def __del__(self):
        finalize()


def finalize():
    sum(range(20))


def allocate(end):
    while time.thread_time() < end:
        for _ in range(100):
            Cycle()


if not hasattr(time, "thread_time"):
    time.thread_time = time.process_time  # CPython 3.6
kept = [[number] for number in range(30_000)]  # which take time to look through
gc.set_threshold(500, 5, 5)
print("ready", flush=True)
allocate(time.thread_time() + 1)
gc.collect()
