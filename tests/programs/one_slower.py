"""One thread that calls f(), g() and h() in turn; f() takes 30% of the time, or so many percent longer.

Arguments: rounds of one turn in thousands (25 take about 1 ms), percent. Prints "ready"; runs until its input ends.
"""

from __future__ import annotations

import os
import sys
import threading


def f(rounds: int) -> None:
    for number in range(rounds):
        number * number


def g(rounds: int) -> None:
    for number in range(rounds):
        number * number


def h(rounds: int) -> None:
    for number in range(rounds):
        number * number


def end() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    rounds, percent = int(sys.argv[1]) * 1000, int(sys.argv[2])
    threading.Thread(target=end, daemon=True).start()
    print("ready", flush=True)
    while True:
        f(rounds * 3 * (100 + percent) // 1000)
        g(rounds * 4 // 10)
        h(rounds * 3 // 10)


if __name__ == "__main__":
    main()
