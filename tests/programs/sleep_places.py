"""Threads that go to sleep for good, each in a place of its own below C and Python, once a line is on standard input.

Places are ctypes callbacks, qsort, sorted, re, json, expat, sqlite3, functools.reduce, locks, select and queues, at
several depths. Prints `ready PID` when all threads wait for the line, `asleep` when each is on its way to its place.
Runs until standard input closes. Standard library only.
"""

import ctypes
import functools
import json
import os
import pyexpat
import queue
import re
import select
import socket
import sqlite3
import sys
import threading
import time

THREADS = 36
COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
ready = threading.Barrier(THREADS + 1)
go = threading.Event()
on_their_way = threading.Semaphore(0)


def down(depth):
    if depth:
        return down(depth - 1)
    on_their_way.release()
    time.sleep(6000)


def by_sorted(depth):
    sorted([2, 1], key=lambda item: down(depth))


def by_regular_expression(depth):
    re.sub("x", lambda match: str(down(depth)), "x")


def by_reduce(depth):
    functools.reduce(lambda a, b: by_sorted(depth), [1, 2, 3])


def by_ctypes(depth):
    numbers = (ctypes.c_int * 3)(3, 2, 1)
    ctypes.CDLL(None).qsort(numbers, 3, 4, COMPARE(lambda a, b: by_reduce(depth) or 0))


def by_json(depth):
    json.loads("[{}]", object_hook=lambda pairs: down(depth))


def by_expat(depth):
    parser = pyexpat.ParserCreate()
    parser.StartElementHandler = lambda name, attributes: by_json(depth)
    parser.Parse("<a/>", True)


def by_sqlite(depth):
    connection = sqlite3.connect(":memory:")
    connection.create_function("fall", 1, by_expat)
    connection.execute("select fall(?)", (depth,)).fetchall()


def by_lock(depth):
    lock = threading.Lock()
    lock.acquire()
    on_their_way.release()
    lock.acquire()


def by_condition(depth):
    on_their_way.release()
    threading.Event().wait(6000)


def by_queue(depth):
    on_their_way.release()
    queue.Queue().get()


def by_select(depth):
    pair = socket.socketpair()
    on_their_way.release()
    select.select([pair[0]], [], [])


def by_recv(depth):
    pair = socket.socketpair()
    on_their_way.release()
    pair[0].recv(1)


def by_generator(depth):
    def inner():
        yield down(depth)

    def outer():
        yield from inner()

    list(map(str, outer()))


KINDS = [down, by_sorted, by_regular_expression, by_reduce, by_ctypes, by_json, by_expat, by_sqlite, by_lock]
KINDS += [by_condition, by_queue, by_select, by_recv, by_generator]


def place(kind, depth):
    ready.wait()
    go.wait()
    kind(depth)


def main():
    for index in range(THREADS):
        arguments = (KINDS[index % len(KINDS)], index % 7)
        threading.Thread(target=place, args=arguments, daemon=True).start()
    ready.wait()
    print(f"ready {os.getpid()}", flush=True)
    sys.stdin.readline()
    go.set()
    for _ in range(THREADS):
        on_their_way.acquire()
    print("asleep", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
