"""A program that knows its own truth: what each function of each thread cost, by the kernel's own clocks.

Standard input: lines `start` and `stop`; each takes a snapshot. `stop` (or the end of the input) prints one line of
JSON about the window since the last `start` (or since `ready`). After the end of the input the program ends.

Standard output, first line:
    {"ready": true, "pid": PID, "threads": {TID: NAME, ...}}
and one line a window:
    {"pid": PID, "threads": [{"tid", "name", "start_ns", "end_ns", "wall_ns", "cpu_ns", "runqueue_ns", "wait_ns",
        "functions": {NAME: {"calls", "wall_ns", "cpu_ns", "runqueue_ns", "wait_ns"}, ...}}, ...]}
start_ns and end_ns are CLOCK_MONOTONIC. wall = cpu + runqueue + wait, for threads and for functions. `calls` counts
the calls that ended in the window; the time of a call that crosses an edge of the window is split there. What a thread
spent outside these functions (taking the measurements) is the thread's figure less the sum of its functions'.
A wait for the GIL inside a function is part of that function's wait. runqueue is 0 where the kernel has no schedstat.
The main thread, which reads the commands, is not in the list.

Standard library only; CPython 3.9 and newer.
"""

import argparse
import hashlib
import json
import os
import queue
import random
import select
import sys
import threading
import time
import zlib
from collections import namedtuple

from clocks import ThreadClock, Times, add, name_thread, subtract

Snapshot = namedtuple("Snapshot", "total functions")  # Times of the thread; name -> (calls, Times)


class Worker(threading.Thread):
    """Calls functions by a seeded schedule for as long as the process lives, and keeps the account of each."""

    def __init__(self, name, seed, functions):
        super().__init__(name=name, daemon=True)
        self.random = random.Random(seed)
        self.functions = functions  # (function, shortest ms, longest ms), called in turn
        self.totals = {function.__name__: (0, Times(0, 0, 0)) for function, _, _ in functions}
        # (name, Times at its start) of the function that runs. None while the account is being changed.
        self.current = None
        self.measuring = threading.Event()

    def run(self):
        self.tid = name_thread(self.name)
        # One CPU each: of a thread that is moved, schedstat has some sleep for time on the run queue (Linux 6.12).
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[self.tid % len(cpus)]})
        self.clock = ThreadClock(self.tid)
        self.measuring.set()
        while True:
            for function, shortest_ms, longest_ms in self.functions:
                self.measure(function, self.random.uniform(shortest_ms, longest_ms))

    def measure(self, function, milliseconds):
        """Calls the function; the clocks are read close to the call, and the account is written outside of it."""
        started = self.clock.read_clocks()
        self.current = (function.__name__, started)
        function(milliseconds)
        ended = self.clock.read_clocks()
        self.current = None
        calls, times = self.totals[function.__name__]
        self.totals[function.__name__] = (calls + 1, add(times, subtract(ended, started)))

    def snapshot(self):
        """The account as of now, with the function in progress split at this moment.

        Every change of the account replaces `current` first, so an unchanged `current` means that totals and clocks
        belong together.
        """
        while True:
            current = self.current
            totals = dict(self.totals)
            now = self.clock.read_clocks()
            if current is None or self.current is not current:
                time.sleep(0)  # let the worker finish
                continue
            name, started = current
            calls, times = totals[name]
            totals[name] = (calls, add(times, subtract(now, started)))
            return Snapshot(now, totals)


def with_wait(times):
    return dict(times._asdict(), wait_ns=times.wall_ns - times.cpu_ns - times.runqueue_ns)


def report(workers, before, after):
    """The difference of two snapshots a worker, as the JSON in the module's docstring."""
    threads = []
    for worker, first, last in zip(workers, before, after):
        functions = {}
        for name, (calls, times) in last.functions.items():
            earlier_calls, earlier_times = first.functions[name]
            functions[name] = dict(calls=calls - earlier_calls, **with_wait(subtract(times, earlier_times)))
        threads.append(
            dict(
                tid=worker.tid,
                name=worker.name,
                start_ns=first.total.wall_ns,
                end_ns=last.total.wall_ns,
                **with_wait(subtract(last.total, first.total)),
                functions=functions,
            )
        )
    return {"pid": os.getpid(), "threads": threads}


# ---- What the threads do. Each function's name is what a profile should show.

BLOCK = bytes(random.Random(7).choices(b"abcdefgh", k=1 << 16))
LOCK = threading.Lock()
ITEMS = queue.Queue()
PIPE_READ, PIPE_WRITE = os.pipe()
SELECT_READ, SELECT_WRITE = os.pipe()


def iterations_per_ms(function):
    """How much work of a C function fits into a millisecond, roughly: the account does not rely on it."""
    count = 1
    while True:
        started = time.thread_time_ns()
        function(count)
        spent = time.thread_time_ns() - started
        if spent > 5_000_000:
            return count * 1e6 / spent
        count *= 4


def derive_key(count):
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", count)


def deflate(count):
    zlib.compress(BLOCK * max(1, count // 16), 6)


def burn_python(milliseconds):
    until = time.monotonic_ns() + int(milliseconds * 1e6)
    total = 0
    while time.monotonic_ns() < until:
        for number in range(500):
            total += number * number
    return total


def hash_in_c(milliseconds):
    derive_key(max(1, int(milliseconds * HASHES_PER_MS)))


def compress_in_c(milliseconds):
    deflate(max(1, int(milliseconds * BLOCKS_PER_MS)))


def sleep_a_while(milliseconds):
    time.sleep(milliseconds / 1e3)


def hold_lock(milliseconds):
    with LOCK:
        time.sleep(milliseconds / 1e3)


def wait_for_lock(milliseconds):
    with LOCK:
        pass


def wait_in_queue(milliseconds):
    ITEMS.get()


def read_pipe(milliseconds):
    os.read(PIPE_READ, 1)


def wait_in_select(milliseconds):
    select.select([SELECT_READ], [], [], milliseconds / 1e3)


def feed_after_pause(milliseconds):
    """Feeds the queue and the pipe, so that their readers wait about as long as this sleeps."""
    time.sleep(milliseconds / 1e3)
    ITEMS.put(None)
    os.write(PIPE_WRITE, b".")


HASHES_PER_MS = iterations_per_ms(derive_key)
BLOCKS_PER_MS = iterations_per_ms(deflate)


def main():
    arguments = argparse.ArgumentParser(description="A program that knows what its functions cost.")
    arguments.add_argument("--seed", type=int, default=1)
    seed = arguments.parse_args().seed
    workers = [
        Worker("cruncher", seed, [(burn_python, 3, 12), (hash_in_c, 4, 18), (sleep_a_while, 10, 50)]),
        Worker("reader", seed + 1, [(read_pipe, 0, 0), (compress_in_c, 3, 10), (wait_in_select, 5, 30)]),
        Worker("consumer", seed + 2, [(wait_in_queue, 0, 0), (burn_python, 3, 6), (wait_for_lock, 0, 0)]),
        Worker("holder", seed + 3, [(hold_lock, 8, 40), (sleep_a_while, 3, 10), (hash_in_c, 3, 8)]),
        Worker("feeder", seed + 4, [(feed_after_pause, 10, 45)]),
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.measuring.wait()
    threads = {worker.tid: worker.name for worker in workers}
    print(json.dumps({"ready": True, "pid": os.getpid(), "threads": threads}), flush=True)

    before = [worker.snapshot() for worker in workers]
    for line in sys.stdin:
        now = [worker.snapshot() for worker in workers]
        if line.strip() == "start":
            before = now
        elif line.strip() == "stop":
            print(json.dumps(report(workers, before, now)), flush=True)
            before = None
    if before is not None:
        print(json.dumps(report(workers, before, [worker.snapshot() for worker in workers])), flush=True)
    os._exit(0)  # the workers are in the middle of something


if __name__ == "__main__":
    main()
