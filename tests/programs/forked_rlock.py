"""A forked process whose main thread waits for an RLock that a thread of its parent had, whose id another one has now.

Two more wait for RLocks that threads of this process have, by `with` and by acquire(). The parent prints the id of the
process, and ends it when standard input is closed.
"""

import os
import signal
import sys
import threading
import time

LONG_S = 300


def start(name, function, *arguments):
    there = threading.Event()
    thread = threading.Thread(target=function, args=(there.set, *arguments), name=name, daemon=True)
    thread.start()
    there.wait()
    return thread.ident


def rest(there):
    there()
    time.sleep(LONG_S)


def enter(there, lock):
    with lock:
        rest(there)


def acquire(there, lock):
    lock.acquire()
    try:
        rest(there)
    finally:
        lock.release()


def want(there, lock):
    there()
    lock.acquire()


def forked(gone, lock, ready):
    assert any(start("has its id", rest) == gone for _ in range(100))
    for function in (enter, acquire):
        own = threading.RLock()
        start(function.__name__, function, own)
        start(f"wants {function.__name__}", want, own)
    threading.Thread(target=tell_when_all_sleep, args=(ready,), daemon=True).start()
    lock.acquire()


def tell_when_all_sleep(ready):
    own, asleep = os.readlink("/proc/thread-self").rpartition("/")[2], 0
    while asleep < 5:
        time.sleep(0.02)
        states = set()
        for tid in set(os.listdir("/proc/self/task")) - {own}:
            with open(f"/proc/self/task/{tid}/stat") as file:
                states.add(file.read().rpartition(")")[2].split()[0])
        asleep = asleep + 1 if states == {"S"} else 0
    os.write(ready, b"x")
    time.sleep(LONG_S)


LOCK = threading.RLock()
GONE = start("had it", acquire, LOCK)
READER, WRITER = os.pipe()
CHILD = os.fork()
if not CHILD:
    forked(GONE, LOCK, WRITER)
os.close(WRITER)
os.read(READER, 1)
print(CHILD, flush=True)
sys.stdin.read()
os.kill(CHILD, signal.SIGKILL)
os._exit(0)
