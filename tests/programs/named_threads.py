"""Threads with names of every kind; each then waits until standard input closes. Runs on CPython 3.6 and newer.

Prints a line of JSON: {"interpreter": address of PyInterpreterState, "names": {IDENT: NAME}, "natives": {IDENT: TID}}.
With --churn threads of the name `short` live for 0.3 s each meanwhile. A line on standard input renames one.
"""

import ctypes
import json
import os
import sys
import threading
import time


class Other(threading.Thread):
    """Has more attributes than its instances share, set in another order."""

    def __init__(self, number):
        self.before = number
        super().__init__(target=wait, name=f"other {number}")
        for place in range(40 * number):
            setattr(self, f"more_{place}", place)


class Slotted(threading.Thread):
    __slots__ = ("one", "two")


class Renamed(threading.Thread):
    @property
    def name(self):
        return "not this"

    @name.setter
    def name(self, value):
        self._name = value


def wait():
    started.release()
    closed.wait()


def short():
    time.sleep(0.3)


def native():
    """A thread that threading has not started, and that asks for its name: a dummy has no name of its own."""
    import _thread

    _thread.start_new_thread(lambda: (threading.current_thread(), wait()), ())


closed, started = threading.Event(), threading.Semaphore(0)
LATER = "to be renamed"


def main():
    given = ("plain", "größe", "名前", "\N{SNAKE} snake", "x" * 300, LATER)
    threads = [threading.Thread(target=wait, name=name) for name in given]
    threads += [Other(0), Other(1), Slotted(target=wait, name="slotted"), Renamed(target=wait, name="renamed")]
    threads += [threading.Thread(target=wait) for _ in range(20)]
    threads[0].__dict__["more"] = 1  # its attributes are a dict from now on
    for thread in threads:
        thread.start()
    threads[1].name = "grün"
    native()
    for _ in range(len(threads) + 1):
        started.acquire()
    names = {thread.ident: thread._name for thread in threading.enumerate() if not thread._name.startswith("Dummy")}
    # Not what a debugger would do: the program tells what the test is to find.
    head = ctypes.pythonapi.PyInterpreterState_Head
    head.restype = ctypes.c_void_p
    natives = {thread.ident: getattr(thread, "native_id", 0) for thread in threading.enumerate()}
    print(json.dumps({"interpreter": head(), "names": names, "natives": natives}), flush=True)
    if "--churn" in sys.argv:
        threading.Thread(target=churn, daemon=True).start()
    if sys.stdin.readline():
        threads[5].name = "was renamed"
        os.write(1, b"renamed\n")
        sys.stdin.readline()
    closed.set()


def churn():
    while True:
        thread = threading.Thread(target=short, name="short")
        thread.start()
        thread.join()


if __name__ == "__main__":
    main()
