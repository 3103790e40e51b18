"""Python -> C -> Python, five levels deep: ctypes callbacks, qsort, sorted(key=) and expat handlers, in every rotation.

Thread n begins with kind n, and ends in a busy loop. Prints, when each thread has been at its leaf, one line of JSON:
    {"ready": true, "pid": PID, "threads": {TID: [KIND, KIND, KIND, KIND], ...}}
where KIND is `ctypes`, `qsort`, `sorted` or `expat`: what is between `level_1` and `level_2`, and so on.
Runs until standard input closes. Standard library only.
"""

import ctypes
import json
import os
import pyexpat
import sys
import threading
import time

SIMPLE = ctypes.CFUNCTYPE(None)
COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
QSORT = ctypes.CDLL(None).qsort
QSORT.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, COMPARE
KINDS = ["ctypes", "qsort", "sorted", "expat"]
all_there = threading.Barrier(len(KINDS) + 1)


def go(kind, function):
    """Calls function(...) once, through C."""
    if kind == "ctypes":
        SIMPLE(function)()
    elif kind == "qsort":
        QSORT((ctypes.c_int * 2)(2, 1), 2, 4, COMPARE(function))
    elif kind == "sorted":
        sorted([1], key=function)
    else:
        parser = pyexpat.ParserCreate()
        parser.StartElementHandler = function
        parser.Parse("<one/>", True)


def level_1(kinds, arrive):
    def level_2(*_):
        def level_3(*_):
            def level_4(*_):
                def level_5(*_):
                    arrive()
                    busy()
                    return 0

                go(kinds[3], level_5)
                return 0

            go(kinds[2], level_4)
            return 0

        go(kinds[1], level_3)
        return 0

    go(kinds[0], level_2)


def busy():
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        pass


def for_ever(kinds):
    level_1(kinds, all_there.wait)
    while True:
        level_1(kinds, int)


def main():
    threads = {}
    for first in range(len(KINDS)):
        kinds = KINDS[first:] + KINDS[:first]
        thread = threading.Thread(target=for_ever, args=(kinds,), daemon=True)
        thread.start()
        threads[thread.native_id] = kinds
    all_there.wait()
    print(json.dumps({"ready": True, "pid": os.getpid(), "threads": threads}), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
