"""Calls that go through C at each level, --levels deep, as modules of a neural network call each other.

Prints `ready PID`; runs until standard input closes. Standard library only.
"""

import argparse
import os
import sys
import threading
import time


class Module:
    def __init__(self, child):
        self.child = child

    def __call__(self, *arguments, **keywords):
        return self.forward(*arguments, **keywords)

    def forward(self, value):
        return self.child(value) + 1


def leaf(value):
    end = time.monotonic() + 0.01
    while time.monotonic() < end:
        pass
    time.sleep(0.001)
    return value


def work(model):
    while True:
        model(0)


def main():
    parser = argparse.ArgumentParser(description="Deep calls through C.")
    parser.add_argument("--levels", type=int, default=30)
    model = leaf
    for _ in range(parser.parse_args().levels):
        model = Module(model)
    threading.Thread(target=work, args=(model,), daemon=True).start()
    print(f"ready {os.getpid()}", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
