"""Waits at one place that two lines of its caller lead to: by next(), by a for loop, and by a call from C.

Prints `ready`; runs until it is killed.
"""

import time


def wait_in_generator():
    """A generator whose frame lies apart from its caller's."""
    while True:
        time.sleep(0.0005)
        yield


class Waiter:
    """An object that C code calls: from CPython 3.12 on an entry frame lies in between."""

    def __call__(self):
        self.wait()

    def wait(self):
        """Half a millisecond."""
        time.sleep(0.0005)


def twice(generator, waiter):
    """Every wait from two lines."""
    next(generator)
    next(generator)
    waiter()
    waiter()
    for _ in generator:
        break
    for _ in generator:
        break


print("ready", flush=True)
GENERATOR, WAITER = wait_in_generator(), Waiter()
while True:
    twice(GENERATOR, WAITER)
