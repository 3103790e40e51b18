"""Sub-interpreters and generators in corners; one kind a run, until standard input closes.

What may call what is in `tests/oracles/corner_truths.py`. Prints "ready PID". Standard library only, CPython 3.9 and
newer.
"""

import ctypes
import os
import sys
import threading
import time

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

COMPARES = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
WORK = 8000
KEPT = []  # 3.12 and before end an interpreter with the last object that has its number
# Names end with the number of the interpreter that they are of, so that none can pass for another's.
INNER = """
import sys, time
def burn_{0}():
    for _ in range(8000): pass
def nap_{0}():
    time.sleep(0.002)
def counts_{0}():
    for number in range(3):
        burn_{0}()
        yield number
def key_{0}(number):
    burn_{0}()
    return number
def turn_{0}():
    sorted(range(3), key=key_{0})
    tuple(counts_{0}())
    nap_{0}()
"""
NEXT = """
import {module} as interpreters
def runs_{0}():
    interpreters.run_string({inner}, "runs_{next}()" if {has_next} else "turn_{next}()")
"""


def burn(steps=WORK):
    for _ in range(steps):
        pass


def nap():
    time.sleep(0.002)


def tell_ready():
    """When all interpreters are made."""
    print("ready", os.getpid(), flush=True)


def run(interpreter, script):
    failed = interpreters.run_string(interpreter, script)
    assert failed is None, failed


def make(number):
    interpreter = interpreters.create()
    KEPT.append(interpreter)
    run(interpreter, INNER.format(number))
    return interpreter


def add_next(interpreter, number, inner, has_next):
    """runs_NUMBER() in one interpreter lets the next one run."""
    run(
        interpreter,
        NEXT.format(number, module=interpreters.__name__, inner=int(inner), next=number + 1, has_next=has_next),
    )


def alone():
    one = make(1)
    tell_ready()
    while True:
        run(one, "turn_1()")
        burn()


def chained(count):
    """The number of the first, which runs the second, which runs the third."""
    made = [make(number) for number in range(1, count + 1)]
    for number in range(1, count):
        add_next(made[number - 1], number, made[number], number < count - 1)
    return made[0]


def nested():
    first = chained(3)
    tell_ready()
    while True:
        run(first, "runs_1()")
        burn()


def two_chains():
    """Two threads, each with two interpreters, nested."""

    def chain_runs(first):
        while True:
            run(first, "runs_1()")

    threads = [threading.Thread(target=chain_runs, args=(chained(2),), daemon=True) for _ in range(2)]
    tell_ready()
    for thread in threads:
        thread.start()
    threads[0].join()


def in_threads():
    """A thread each, and one that stays in the main interpreter."""

    def thread_runs(interpreter, number):
        while True:
            run(interpreter, f"turn_{number}()")
            nap()

    def stays():
        while True:
            burn()
            nap()

    threads = [threading.Thread(target=thread_runs, args=(make(it), it), daemon=True) for it in (1, 2)]
    threads.append(threading.Thread(target=stays, daemon=True))
    tell_ready()
    for thread in threads:
        thread.start()
    threads[0].join()


def from_callback():
    """An interpreter that runs in a key of sorted(), and in a comparison of qsort()."""
    one, two = make(1), make(2)
    library = ctypes.CDLL(None)
    library.qsort.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, COMPARES]
    numbers = (ctypes.c_int * 3)(3, 1, 2)

    def key(number):
        run(one, "turn_1()")
        return number

    def compares(left, right):
        run(two, "turn_2()")
        return left[0] - right[0]

    function = COMPARES(compares)
    tell_ready()
    while True:
        sorted(range(3), key=key)
        library.qsort(numbers, 3, 4, function)


def generators():  # noqa: C901
    """Resumed by C, by Python and by one another, for short, so that many are just entered or left."""

    def short():
        for number in range(20):
            yield number + 1

    def outer():
        yield from short()

    def mapped(number):
        return sum(it for it in (number, number))

    def by_tuple():
        return tuple(number + 1 for number in range(30))

    def by_sum():
        return sum(number for number in short())

    def by_map():
        return list(map(mapped, outer()))

    def by_zip():
        return [one for one, _ in zip(short(), outer())]

    def by_join():
        return "".join(str(number) for number in short())

    def by_any():
        return any(number > 100 for number in outer())

    tell_ready()
    while True:
        for each in (by_tuple, by_sum, by_map, by_zip, by_join, by_any):
            each()


def deep_generators():
    """A generator in a generator, 50 deep, consumed by C."""

    def deep(depth):
        if depth:
            yield from deep(depth - 1)
        else:
            burn(300)
            yield depth

    def consumes():
        tuple(deep(50))

    def consumes_each():
        tuple(it for it in tuple(deep(5)))

    tell_ready()
    while True:
        consumes()
        consumes_each()


def ends_with_input():
    os.read(0, 1)
    os._exit(0)


def main():
    threading.Thread(target=ends_with_input, daemon=True).start()
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
