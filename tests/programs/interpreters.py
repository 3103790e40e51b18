"""Threads that run Python in interpreters of their own, until the process is killed.

Each thread calls NAME_outside(), which lets an interpreter run turn(): that computes in count() and sleeps in nap().
`main` and `worker` do so once, the interpreter of `nested` lets another one do it. Where interpreters have a GIL each,
threads a0 and a1 fight for the one of their interpreter, and b0 and b1 for another one.
Prints "ready PID" first. Standard library only, CPython 3.8 and newer.
"""

import os
import sys
import threading

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

OWN_GIL = sys.version_info >= (3, 12)
TURN = """
import time

def count(limit):
    total = 0
    for number in range(limit):
        total += number
    return total

def nap():
    time.sleep(0.02)

def turn():
    count(100_000)
    nap()
"""
NEST = f"""
import {interpreters.__name__} as interpreters

def nest(innermost):
    interpreters.run_string(innermost, "turn()")
"""
FIGHT = """
import threading

def hog():
    while True:
        sum(range(10_000))

def fight(letter):
    threads = [threading.Thread(target=hog, name=f"{letter}{number}") for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def run(interpreter, script):
    failed = interpreters.run_string(interpreter, script)
    assert failed is None, failed


def make(*scripts):
    interpreter = interpreters.create()
    for script in scripts:
        run(interpreter, script)
    return interpreter


def main_outside(interpreter):
    while True:
        run(interpreter, "turn()")


def worker_outside(interpreter):
    while True:
        run(interpreter, "turn()")


def nested_outside(interpreter, innermost):
    while True:
        run(interpreter, f"nest({int(innermost)})")


def main():
    threads = [
        threading.Thread(target=worker_outside, args=(make(TURN),), name="worker"),
        threading.Thread(target=nested_outside, args=(make(NEST), make(TURN)), name="nested"),
    ]
    if OWN_GIL:
        threads += [
            threading.Thread(target=run, args=(make(FIGHT), f"fight({letter!r})"), name=f"starts {letter}")
            for letter in "ab"
        ]
    mine = make(TURN)
    for thread in threads:
        thread.start()
    print("ready", os.getpid(), flush=True)
    main_outside(mine)


main()
