"""Four workers that want one lock, each holding it for another time; knows who held it while the others waited.

lock_kinds.py KIND FOLDER prints `ready PID`. A line `BEGIN END` on standard input, seconds of CLOCK_MONOTONIC, asks
for a line of JSON: `held_s`, how long each worker (by tid, the first holds it longest) held the lock then while
others waited, once for each that did; `waited_s`, what they waited together. Of kind `kernel` it is known only who
holds it longest.
"""

import ctypes
import fcntl
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time

HOLD_S = (0.030, 0.009, 0.004, 0.002)
PAUSE_S = 0.001
CALLS = 20_000
OF_PROCESSES = ("shared", "spawned", "flock", "fcntl")
C_LOCK = """
#include <pthread.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
void take(void) { pthread_mutex_lock(&mutex); }
void give(void) { pthread_mutex_unlock(&mutex); }
"""


def take_turns(number, take, give, calls, counts):
    tid = threading.get_native_id()
    counts[number * 2] = tid
    clock = time.monotonic
    for call in range(CALLS):
        asked = clock()
        take()
        got = clock()
        hold(number)
        calls[number * CALLS * 3 + call * 3 : number * CALLS * 3 + call * 3 + 3] = [asked, got, clock()]
        give()
        counts[number * 2 + 1] = call + 1
        time.sleep(PAUSE_S)


def hold(number):
    """The first holds it longest."""
    time.sleep(HOLD_S[number])


def pair_of(kind, folder, shared):
    """(take, give), made in the worker."""
    if kind in ("flock", "fcntl"):
        file = os.open(os.path.join(folder, "file"), os.O_WRONLY)
        lock = fcntl.flock if kind == "flock" else fcntl.lockf
        return (lambda: lock(file, fcntl.LOCK_EX)), (lambda: lock(file, fcntl.LOCK_UN))
    lock = shared or SHARED[kind]
    return (lock.take, lock.give) if kind == "mutex" else (lock.acquire, lock.release)


SHARED = {
    "lock": threading.Lock(),
    "rlock": threading.RLock(),
    "condition": threading.Condition(),
    "semaphore": threading.Semaphore(1),
    "shared": multiprocessing.get_context("fork").Lock(),
}


def compiled(folder):
    source, library = os.path.join(folder, "lock.c"), os.path.join(folder, "lock.so")
    with open(source, "w") as file:
        file.write(C_LOCK)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-pthread", "-o", library, source], check=True)
    return ctypes.CDLL(library)


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


def worker(number, kind, folder, calls, counts, shared=None):
    if kind in OF_PROCESSES:
        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    if kind == "kernel":
        counts[number * 2] = threading.get_native_id()
        (write_small if number else write_large)(os.path.join(folder, "file"))
    take_turns(number, *pair_of(kind, folder, shared), calls, counts)


def told(calls, counts, since, until):
    rows = []
    for number in range(len(HOLD_S)):
        begin = number * CALLS * 3
        times = calls[begin : begin + 3 * int(counts[number * 2 + 1])]
        rows.append([times[place : place + 3] for place in range(0, len(times), 3)])
    tids = [int(counts[number * 2]) for number in range(len(HOLD_S))]
    held, waited = dict.fromkeys(tids, 0.0), 0.0
    for waiter, waits in enumerate(rows):
        for asked, got, _ in waits:
            asked, got = max(asked, since), min(got, until)
            waited += max(0, got - asked)
            for holder, holds in enumerate(rows):
                if holder != waiter:
                    held[tids[holder]] += sum(
                        max(0.0, min(got, end) - max(asked, begin))
                        for _, begin, end in holds
                        if begin < got and end > asked
                    )
    return {"held_s": held, "waited_s": waited}


def main(kind, folder):
    calls = multiprocessing.RawArray("d", len(HOLD_S) * CALLS * 3)
    counts = multiprocessing.RawArray("d", len(HOLD_S) * 2)
    if kind == "mutex":
        SHARED[kind] = compiled(folder)
    spawned = multiprocessing.get_context("spawn").Lock() if kind == "spawned" else None
    open(os.path.join(folder, "file"), "w").close()
    for number in range(len(HOLD_S)):
        arguments = (number, kind, folder, calls, counts)
        if kind in OF_PROCESSES:
            context = multiprocessing.get_context("spawn" if kind == "spawned" else "fork")
            arguments += (spawned,) * (kind == "spawned")
            context.Process(target=worker, args=arguments, daemon=True).start()
        else:
            threading.Thread(target=worker, args=arguments, daemon=True, name=f"worker-{number}").start()
    while not all(counts[number * 2] for number in range(len(HOLD_S))):
        time.sleep(0.001)
    print(f"ready {os.getpid()}", flush=True)
    for line in sys.stdin:
        print(json.dumps(told(calls, counts, *map(float, line.split()))), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as name:
        main(sys.argv[1], name)
