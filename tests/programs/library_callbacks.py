"""Threads inside C libraries that call back into Python, each below a Python function of its own name.

`by_sqlite_function`, `by_sqlite_collation`, `by_zlib` (which does not call back), `by_regular_expression`,
`by_json_hook`, `by_json_default` and `by_expat`. Prints, when each library was called once, one line of JSON:
    {"ready": true, "pid": PID, "threads": {TID: FUNCTION, ...}}
Runs until standard input closes. Standard library only (and its sqlite3).
"""

import json
import os
import pyexpat
import random
import re
import sqlite3
import sys
import threading
import time
import zlib

BLOCK = bytes(random.Random(7).choices(b"abcdefgh", k=1 << 17))
TEXT = "word " * 40
DOCUMENT = "[" + ",".join('{"key": 1}' for _ in range(40)) + "]"
XML = "<all>" + "<one>text</one>" * 40 + "</all>"
turn = 0


def work(*_):
    """Every callback: some Python, and now and then a nap."""
    global turn
    turn += 1
    total = sum(range(300))
    if turn % 20 == 0:
        time.sleep(0.002)
    return total


def by_sqlite_function():
    with sqlite3.connect(":memory:") as connection:
        connection.create_function("work", 1, work)
        connection.execute("create table numbers (number integer)")
        connection.executemany("insert into numbers values (?)", [(number,) for number in range(40)])
        while True:
            connection.execute("select sum(work(number)) from numbers").fetchall()
            yield


def by_sqlite_collation():
    def compare(first, second):
        work()
        return (first > second) - (first < second)

    with sqlite3.connect(":memory:") as connection:
        connection.create_collation("slow", compare)
        connection.execute("create table words (word text)")
        connection.executemany("insert into words values (?)", [(str(number * 7 % 31),) for number in range(20)])
        while True:
            connection.execute("select word from words order by word collate slow").fetchall()
            yield


def by_zlib():
    while True:
        zlib.decompress(zlib.compress(BLOCK, 6))
        time.sleep(0.002)
        yield


def by_regular_expression():
    while True:
        re.sub("w", lambda match: str(work()), TEXT)
        yield


def by_json_hook():
    while True:
        json.loads(DOCUMENT, object_hook=work)
        yield


def by_json_default():
    things = [object() for _ in range(40)]
    while True:
        json.dumps(things, default=work)
        yield


def by_expat():
    while True:
        parser = pyexpat.ParserCreate()
        parser.StartElementHandler = work
        parser.CharacterDataHandler = work
        parser.Parse(XML, True)
        yield


KINDS = by_sqlite_function, by_sqlite_collation, by_zlib, by_regular_expression, by_json_hook, by_json_default, by_expat
all_called = threading.Barrier(len(KINDS) + 1)


def for_ever(kind):
    turns = kind()
    next(turns)
    all_called.wait()
    for _ in turns:
        pass


def main():
    threads = {}
    for kind in KINDS:
        thread = threading.Thread(target=for_ever, args=(kind,), daemon=True)
        thread.start()
        threads[thread.native_id] = kind.__name__
    all_called.wait()
    print(json.dumps({"ready": True, "pid": os.getpid(), "threads": threads}), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
