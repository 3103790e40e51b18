"""A process of which it is known what its threads do; runs until its input ends, then prints its shares as JSON.

The main thread takes turns at computing in Python, computing in C, and sleeping; the thread `waiter` waits for a lock.
Prints "ready PID" first, and at the end {"count": SECONDS, "digest": SECONDS} of CPU.
Standard library only, CPython 3.9 and newer.
"""

import hashlib
import json
import os
import random
import select
import sys
import threading
import time

ROUNDS = 2000
spent = {"count": 0.0, "digest": 0.0}


def count(limit):
    total = 0
    for number in range(limit):
        total += number
    return total


def digest():
    """In C, without the GIL."""
    return hashlib.pbkdf2_hmac("sha256", b"password", b"salt", ROUNDS)


def nap():
    time.sleep(0.02)


def wait_for(lock):
    lock.acquire()


def timed(function, *arguments):
    before = time.thread_time()
    function(*arguments)
    spent[function.__name__] += time.thread_time() - before


def spend(function, *arguments):
    """For a time that differs from turn to turn, so that samples meet each of them as often as it runs."""
    end = time.thread_time() + random.uniform(0.005, 0.025)
    while time.thread_time() < end:
        timed(function, *arguments)


def main():
    lock = threading.Lock()
    lock.acquire()
    waiter = threading.Thread(target=wait_for, args=(lock,), name="waiter")
    waiter.start()
    print("ready", os.getpid(), flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        spend(count, 20000)
        spend(digest)
        nap()
    lock.release()
    waiter.join()
    print(json.dumps(spent), flush=True)


if __name__ == "__main__":
    main()
