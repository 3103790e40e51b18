"""Ends by itself after --seconds, having spent half of them on the CPU and half asleep.

Prints `ready PID` at once and nothing else; exits with --exit-code. Standard library only.
"""

import argparse
import os
import sys
import time


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1000))


def rest(seconds):
    time.sleep(seconds)


def main():
    parser = argparse.ArgumentParser(description="Ends by itself.")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--exit-code", type=int, default=0)
    options = parser.parse_args()
    print(f"ready {os.getpid()}", flush=True)
    burn(options.seconds / 2)
    rest(options.seconds / 2)
    sys.exit(options.exit_code)


if __name__ == "__main__":
    main()
