"""Four workers that want one lock or two, each holding them for another time; knows who held which when.

lock_kinds.py KIND FOLDER prints `ready PID`. A line `BEGIN END` on standard input, seconds of CLOCK_MONOTONIC, asks
for a line of JSON: for each worker by its tid the turns that it had then, as (lock, when it asked for it, when it had
it, when it gave it back), Infinity: not yet. Of kind `kernel` it is known only that the first holds it longest.
HOLD_TIMES in the environment makes them hold for longer.
"""

import ctypes
import fcntl
import json
import logging
import math
import multiprocessing
import multiprocessing.managers
import os
import queue
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

HOLD_S = tuple(it * float(os.environ.get("HOLD_TIMES", "1")) for it in (0.030, 0.009, 0.004, 0.002))
PAUSE_S = 0.001
TURNS = 20_000
C_LOCK = """
#include <pthread.h>
static pthread_mutex_t mutex[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
void take(int n) { pthread_mutex_lock(&mutex[n]); }
void give(int n) { pthread_mutex_unlock(&mutex[n]); }
"""


class Pair:
    """A lock of two functions."""

    def __init__(self, take, give):
        self.take, self.give = take, give

    def __enter__(self):
        self.take()

    def __exit__(self, *_):
        self.give()


class Impatient:
    """Asks for a lock again and again."""

    def __init__(self):
        self.lock = threading.Lock()

    def __enter__(self):
        while not self.lock.acquire(timeout=0.005):
            pass

    def __exit__(self, *_):
        self.lock.release()


class Entered:
    """A lock that is taken twice."""

    def __init__(self):
        self.lock = threading.RLock()

    def __enter__(self):
        self.lock.acquire()
        with self.lock:
            pass

    def __exit__(self, *_):
        self.lock.release()


class Logged(logging.Handler):
    """The lock of a handler: what is logged is a function."""

    def __init__(self):
        super().__init__()
        self.logger = logging.getLogger("locks")
        self.logger.addHandler(self)
        self.logger.propagate = False

    def emit(self, record):
        record.msg()

    def run(self, held):
        self.logger.warning(held)


class Queued(queue.Queue):
    """The lock of a queue: what is put into it is a function."""

    def _put(self, held):
        held()

    def run(self, held):
        self.put(held)


class Monitor:
    """A condition whose threads wait for each other in between."""

    def __init__(self):
        self.condition = threading.Condition()

    def run(self, held):
        with self.condition:
            held()
            self.condition.notify()
            self.condition.wait(0.002)


class Database:
    def __init__(self, folder):
        self.path = os.path.join(folder, "database")
        self.of_thread = threading.local()

    def __enter__(self):
        if not hasattr(self.of_thread, "it"):
            self.of_thread.it = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        self.of_thread.it.execute("BEGIN EXCLUSIVE")

    def __exit__(self, *_):
        self.of_thread.it.execute("COMMIT")


def file_lock(folder, call, *where):
    file = os.open(os.path.join(folder, "file"), os.O_WRONLY | os.O_CREAT)
    return Pair(lambda: call(file, fcntl.LOCK_EX, *where), lambda: call(file, fcntl.LOCK_UN, *where))


def mutexes(folder, count):
    source, library = os.path.join(folder, "lock.c"), os.path.join(folder, "lock.so")
    with open(source, "w") as file:
        file.write(C_LOCK)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-pthread", "-o", library, source], check=True)
    loaded = ctypes.CDLL(library)
    return [Pair(lambda n=n: loaded.take(n), lambda n=n: loaded.give(n)) for n in range(count)]


def of_processes(way, count=1):
    return [multiprocessing.get_context(way).Lock() for _ in range(count)]


# Made before there are workers, or (EACH) by each.
SHARED = {
    "lock": lambda folder: [threading.Lock()],
    "locks": lambda folder: [threading.Lock(), threading.Lock()],
    "hog": lambda folder: [threading.Lock()],
    "timeout": lambda folder: [Impatient()],
    "rlock": lambda folder: [threading.RLock()],
    "rlocks": lambda folder: [threading.RLock(), threading.RLock()],
    "entered": lambda folder: [Entered()],
    "condition": lambda folder: [threading.Condition()],
    "monitor": lambda folder: [Monitor()],
    "semaphore": lambda folder: [threading.Semaphore(1)],
    "semaphores": lambda folder: [threading.Semaphore(1), threading.BoundedSemaphore(1)],
    "semaphore_hog": lambda folder: [threading.Semaphore(1)],
    "of_two": lambda folder: [threading.Semaphore(2)],
    "logging": lambda folder: [Logged()],
    "queue": lambda folder: [Queued()],
    "mutex": lambda folder: mutexes(folder, 1),
    "mutexes": lambda folder: mutexes(folder, 2),
    "shared": lambda folder: of_processes("fork"),
    "shareds": lambda folder: of_processes("fork", 2),
    "spawned": lambda folder: of_processes("spawn"),
    "manager": lambda folder: [manager().Lock()],
}
EACH = {
    "flock": lambda folder: [file_lock(folder, fcntl.flock)],
    "fcntl": lambda folder: [file_lock(folder, fcntl.lockf)],
    "ranges": lambda folder: [file_lock(folder, fcntl.lockf, 10, at) for at in (0, 1 << 33)],
    "sqlite": lambda folder: [Database(folder)],
}
OF_PROCESSES = ("shared", "shareds", "spawned", "manager", *EACH)
KEPT = []


def manager():
    KEPT.append(multiprocessing.managers.SyncManager(ctx=multiprocessing.get_context("fork")))
    KEPT[-1].start(end_with_parent)
    return KEPT[-1]


def end_with_parent():
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


def take_turns(number, locks, pause_s, turns, counts):
    """The locks in one function."""
    clock, hold_s = time.monotonic, HOLD_S[number]
    for turn in range(TURNS):
        which = (turn * 7 + turn // 3 + number) % len(locks)
        lock, begin = locks[which], (number * TURNS + turn) * 4
        turns[begin : begin + 4] = [which, clock(), math.inf, math.inf]
        counts[number * 2 + 1] = turn + 1

        def held(begin=begin):
            turns[begin + 2] = clock()
            hold(hold_s)
            turns[begin + 3] = clock()

        if hasattr(lock, "run"):
            lock.run(held)
        else:
            with lock:
                held()
        if pause_s:
            time.sleep(pause_s)


def hold(seconds):
    """The first holds it longest."""
    time.sleep(seconds)


def write_large(path):
    block = bytes(64 << 20)
    with open(path, "r+b", buffering=0) as file:
        while True:
            os.pwrite(file.fileno(), block, 0)


def write_small(path):
    with open(path, "r+b", buffering=0) as file:
        while True:
            os.pwrite(file.fileno(), b"x" * 4096, 0)
            time.sleep(PAUSE_S)


def worker(number, kind, folder, turns, counts, locks):
    if kind in OF_PROCESSES:
        end_with_parent()
    counts[number * 2] = threading.get_native_id()
    if kind == "kernel":
        (write_small if number else write_large)(os.path.join(folder, "file"))
    locks = EACH[kind](folder) if kind in EACH else locks
    pause_s = 0 if kind.endswith("hog") and not number else PAUSE_S
    take_turns(number, locks, pause_s, turns, counts)


def told(turns, counts, since, until):
    found = {}
    for number in range(len(HOLD_S)):
        begin = number * TURNS * 4
        values = turns[begin : begin + 4 * int(counts[number * 2 + 1])]
        rows = [values[place : place + 4] for place in range(0, len(values), 4)]
        found[int(counts[number * 2])] = [row for row in rows if row[3] > since and row[1] < until]
    return found


def main(kind, folder):
    turns = multiprocessing.RawArray("d", len(HOLD_S) * TURNS * 4)
    counts = multiprocessing.RawArray("d", len(HOLD_S) * 2)
    open(os.path.join(folder, "file"), "w").close()
    locks = SHARED[kind](folder) if kind in SHARED else []
    for number in range(len(HOLD_S)):
        arguments = (number, kind, folder, turns, counts, locks)
        if kind in OF_PROCESSES:
            context = multiprocessing.get_context("spawn" if kind == "spawned" else "fork")
            context.Process(target=worker, args=arguments, daemon=True).start()
        else:
            threading.Thread(target=worker, args=arguments, daemon=True, name=f"worker-{number}").start()
    while not all(counts[number * 2] for number in range(len(HOLD_S))):
        time.sleep(0.001)
    print(f"ready {os.getpid()}", flush=True)
    for line in sys.stdin:
        print(json.dumps(told(turns, counts, *map(float, line.split()))), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as name:
        main(sys.argv[1], name)
