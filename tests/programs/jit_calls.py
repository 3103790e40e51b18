"""Calls that a JIT compiler has compiled, and that lead into C and back: for a program whose JIT is on.

Prints "ready PID" when all is compiled, and runs until its input ends. Standard library only, CPython 3.9 and newer.
"""

import hashlib
import os
import select
import sys
import time


def compute(limit):
    total = 0
    for number in range(limit):
        total += number * number
    return total


def key(number):
    return compute(40) + number


def sort_all():
    return sorted(range(200), key=key)


def produce(count):
    for _ in range(count):
        yield compute(30)


def drain():
    total = 0
    for number in produce(300):
        total += number
    return total


def digest():
    return hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 300)


def nap():
    time.sleep(0.0005)


def work(rounds):
    for _ in range(rounds):
        compute(5000)
        sort_all()
        drain()
        digest()
        nap()


work(300)
print("ready", os.getpid(), flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    work(10)
