"""Greenlets that compute and sleep, each in functions of its own names; started from different depths, by one another.

Greenlet number N runs `body_N`, `burn_N` and `pause_N` only. With --gevent they are gevent's and its hub switches them;
with --eventlet, eventlet's. Else they switch to one another in turn, from Python functions that lie at various depths.
Prints "ready PID". CPython 3.8 and newer, with greenlet, and with gevent or eventlet where asked for.
"""

import argparse
import os
import sys
import time

import lifetime

COUNT = 6
WORK = 20000  # steps; about a millisecond
SOURCE = """
def burn_{0}(steps):
    for _ in range(steps):
        pass


def pause_{0}(depth):
    if depth:
        # Python, C and Python again.
        return list(map(pause_{0}, [depth - 1]))
    wait({0})


def body_{0}():
    while not finished():
        burn_{0}({1})
        pause_{0}({0} % 4)
"""


def bodies(wait, finished):
    namespace = {"wait": wait, "finished": finished}
    for number in range(COUNT):
        exec(compile(SOURCE.format(number, WORK), "greenlets.py", "exec"), namespace)
    return [namespace[f"body_{number}"] for number in range(COUNT)]


def tell_ready():
    print("ready", os.getpid(), flush=True)


def run_bare(finished):
    """Each starts the next one from where it waits first."""
    import greenlet

    tell_ready()
    greenlets = []

    def wait(number):
        time.sleep(0.0005)
        other = greenlets[(number + 1) % COUNT]
        if not other.dead:
            other.switch()

    greenlets += [greenlet.greenlet(body) for body in bodies(wait, finished)]
    while not all(each.dead for each in greenlets):
        next(each for each in greenlets if not each.dead).switch()


def run_gevent(finished):
    import gevent

    tell_ready()
    gevent.joinall([gevent.spawn(body) for body in bodies(lambda number: gevent.sleep(0.002), finished)])


def run_eventlet(finished):
    import eventlet

    tell_ready()
    for each in [eventlet.spawn(body) for body in bodies(lambda number: eventlet.sleep(0.002), finished)]:
        each.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gevent", action="store_true")
    parser.add_argument("--eventlet", action="store_true")
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    started = time.monotonic()
    run = run_gevent if options.gevent else run_eventlet if options.eventlet else run_bare
    run(lambda: lifetime.finished(options.seconds, started))


if __name__ == "__main__":
    sys.exit(main())
