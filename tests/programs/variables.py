"""A thread with local variables of all kinds; prints `ready` when it sleeps and ends when standard input closes."""

import collections
import enum
import sys
import threading
import time

READY = threading.Event()


class Color(enum.IntEnum):
    RED = 3


class Text(str):
    pass


def cells(a, b="x;y", *args, key=None, **more):
    c = a + 1

    def inner():
        d, e = c * 2, b
        READY.set()
        time.sleep(300)
        return d, e

    inner()


def values(first, second):
    none, true, big, negative, huge, zero, half = None, True, 1 << 70, -(1 << 40), 1 << 5000, 0, 0.5
    text, evil, long, data = "h\u00e9llo", "a\x1b[31m\n\u202e'", "x" * 1000, b"ab\x00\xff" * 100
    items, pair, table, some, queue = [1, 2, 3], (1, 2), {1: 2}, {1, 2}, collections.deque([1])
    color, sub, thing, kind = Color.RED, Text("t"), READY, Text
    del second
    cells(1, z=3)
    return locals()


class Body:
    attribute = 12
    threading.Thread(target=values, args=(1, 2), name="values", daemon=True).start()
    READY.wait()
    print("ready", flush=True)
    sys.stdin.read()
