"""Stacks that are deep or oddly named, each told by the program itself.

Four threads: `recursion` (--depth frames), `generators` (a chain of `yield from`), `coroutines` (a chain of `await`)
and `qualnames` (methods, nested classes, lambdas, generator expressions, decorated and local functions). Each ends in
`rest`, which sleeps 10 ms at a time, or with --burn in `burn`, which uses the CPU.

Prints one line of JSON when all are at their leaf:
    {"ready": true, "pid": PID, "threads": {TID: {"name": NAME, "stack": [[QUALIFIED_NAME, LINE], ...]}, ...}}
Stacks are root first, from the thread's first frame; names are qualified from CPython 3.11 on. LINE of the leaf is 0:
it moves. Runs for --seconds, or until standard input closes. Standard library only.
"""

import argparse
import functools
import json
import os
import sys
import threading
import time

stacks = {}  # tid -> what the JSON line says of the thread
all_arrived = threading.Barrier(5)
burning = False


def arrive():
    """Notes the stack of the caller, then waits for the other threads."""
    stack = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        stack.append([getattr(code, "co_qualname", code.co_name), frame.f_lineno if stack else 0])
        frame = frame.f_back
    thread = threading.current_thread()
    stacks[thread.native_id] = {"name": thread.name, "stack": stack[::-1]}
    all_arrived.wait()


def leaf():
    if burning:
        burn()
    else:
        rest()


def rest():
    arrive()
    while True:
        time.sleep(0.01)


def burn():
    arrive()
    number = 0
    while True:
        number = (number * 3 + 1) % 1000003


def recursion(depth):
    if depth > 0:
        recursion(depth - 1)
    else:
        leaf()


def generators(depth):
    for _ in chain(depth):
        pass


def chain(depth):
    if depth > 0:
        yield from chain(depth - 1)
    else:
        leaf()
        yield


def coroutines(depth):
    link(depth).send(None)


async def link(depth):
    if depth > 0:
        await link(depth - 1)
    else:
        leaf()


def decorated(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)

    return wrapper


class Outer:
    """One call through each kind of callable; every step calls the next."""

    def method(self):
        return Outer.static_method(self)

    @staticmethod
    def static_method(outer):
        return type(outer).class_method(outer)

    @classmethod
    def class_method(cls, outer):
        return outer.value

    @property
    def value(self):
        return Outer.Inner().method()

    class Inner:
        def method(self):
            def local():
                return [self(number) for number in range(1)]

            return local()

        def __call__(self, number):
            return sum(self.generator_expression() for _ in range(1))

        @decorated
        def generator_expression(self):
            return max(map(lambda _: leaf(), "x"))


def qualnames(depth):
    Outer().method()


def main():
    global burning
    parser = argparse.ArgumentParser(description="Deep and oddly named stacks.")
    parser.add_argument("--depth", type=int, default=700, help="frames of the recursion")
    parser.add_argument("--chain", type=int, default=100, help="generators and coroutines in their chains")
    parser.add_argument("--burn", action="store_true", help="use the CPU at the leaf instead of sleeping")
    parser.add_argument("--seconds", type=float, help="run so long; default: until standard input closes")
    options = parser.parse_args()
    burning = options.burn
    sys.setrecursionlimit(options.depth + options.chain + 1000)
    depths = {recursion: options.depth, generators: options.chain, coroutines: options.chain, qualnames: 0}
    for target, depth in depths.items():
        threading.Thread(target=target, args=(depth,), name=target.__name__, daemon=True).start()
    all_arrived.wait()
    print(json.dumps({"ready": True, "pid": os.getpid(), "threads": stacks}), flush=True)
    if options.seconds is not None:
        time.sleep(options.seconds)
    else:
        sys.stdin.read()
    os._exit(0)  # the threads never end


if __name__ == "__main__":
    main()
