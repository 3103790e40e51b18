"""Threads that wait for one another and go on: `healthy.py KIND`, which prints `ready PID`.

A line `BEGIN END` on standard input, seconds of CLOCK_MONOTONIC, asks for a line of JSON: by tid the turns that overlap
that time, as (what, when it was asked for, when the thread had it, when it gave it back), as ordered_locks.py has them.
"""

import asyncio
import concurrent.futures
import itertools
import json
import math
import os
import random
import sys
import tempfile
import threading
import time

TURNS, NUMBERS, KINDS = {}, itertools.count(), {}


def kind(function):
    KINDS[function.__name__] = function
    return function


def start(function, *arguments):
    threading.Thread(target=function, args=arguments, daemon=True).start()


def begins(what, has_it):
    """A turn of this thread, which asks for it or has it."""
    now = time.monotonic()
    turn = [what, now, now if has_it else math.inf, math.inf]
    TURNS.setdefault(threading.get_native_id(), []).append(turn)
    return turn


def ends(turn):
    turn[2] = min(turn[2], time.monotonic())
    turn[3] = time.monotonic()


def runs(what, seconds):
    turn = begins(what, True)
    time.sleep(seconds)
    ends(turn)


def waits(what, function):
    turn = begins(what, False)
    function()
    ends(turn)


@kind
def futures():
    """Three threads of a pool, and five that wait for what they run."""
    pool = concurrent.futures.ThreadPoolExecutor(3)

    def ask():
        while True:
            what = next(NUMBERS)
            waits(what, pool.submit(runs, what, random.choice((0.005, 0.3))).result)

    for _ in range(5):
        start(ask)


@kind
def pools_of_pools():
    """A pool whose threads wait for those of another; and one thread alone that always comes to it."""
    inner, one = concurrent.futures.ThreadPoolExecutor(2), concurrent.futures.ThreadPoolExecutor(1)

    def outer():
        what = next(NUMBERS)
        waits(what, inner.submit(runs, what, random.choice((0.005, 0.3))).result)

    def ask(pool):
        while True:
            pool.submit(outer).result()

    middle = concurrent.futures.ThreadPoolExecutor(3)
    for pool in (middle, middle, middle, one, one):
        start(ask, pool)


@kind
def imports():
    """Four that import the same modules, one after another."""
    folder = tempfile.mkdtemp()
    sys.path.insert(0, folder)
    sys.runs = runs
    for number in range(2000):
        with open(os.path.join(folder, f"made_{number}.py"), "w") as file:
            file.write(f"import sys\nsys.runs({number}, {0.3 if number % 2 else 0.005})\n")

    def bring_in():
        for number in range(2000):
            waits(number, lambda number=number: __import__(f"made_{number}"))

    for _ in range(4):
        start(bring_in)


@kind
def joins():
    """Threads that end are waited for."""

    def ask():
        while True:
            what = next(NUMBERS)
            thread = threading.Thread(target=runs, args=(what, 0.3))
            thread.start()
            waits(what, thread.join)

    for _ in range(4):
        start(ask)


@kind
def tasks():
    """Locks of asyncio, in two loops, and what they do in threads."""

    async def take(lock):
        while True:
            async with lock:
                await asyncio.sleep(0.005)
            await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.005)

    async def run():
        lock = asyncio.Lock()
        await asyncio.gather(*[take(lock) for _ in range(10)])

    for _ in range(2):
        start(asyncio.run, run())


@kind
def given_over():
    """A lock that one takes and another gives back: nobody has it by `with`."""
    lock, is_taken = threading.Lock(), threading.Semaphore(0)

    def take():
        while True:
            lock.acquire()
            is_taken.release()

    def give():
        while True:
            is_taken.acquire()
            time.sleep(0.005)
            lock.release()

    for function in (take, take, give):
        start(function)


def main(name):
    KINDS[name]()
    print("ready", os.getpid(), flush=True)
    for line in sys.stdin:
        begin, end = map(float, line.split())
        known = {tid: [it for it in list(turns) if it[1] < end and it[3] > begin] for tid, turns in list(TURNS.items())}
        print(json.dumps(known), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
