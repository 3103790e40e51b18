"""Functions that Numba compiles: `early_fib` before `ready PID`, `late_fib` when a line comes on standard input.

Then both run in turn, each called from a Python function of its own. Answers the line when `late_fib` is compiled, and
ends with standard input. Needs numba.
"""

import os
import select
import sys

import numba


@numba.njit("int64(int64)")
def early_fib(number):
    return number if number < 2 else early_fib(number - 1) + early_fib(number - 2)


def calls_early():
    early_fib(22)


def compile_late():
    @numba.njit("int64(int64)")
    def late_fib(number):
        return number if number < 2 else late_fib(number - 1) + late_fib(number - 2)

    return late_fib


def calls_late(late):
    late(22)


def main():
    late = None
    print("ready", os.getpid(), flush=True)
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                return
            late = compile_late()
            print("compiled", flush=True)
        calls_early()
        if late:
            calls_late(late)


if __name__ == "__main__":
    main()
