"""Code objects that come and go, so that their addresses are used again by others while a recording runs.

Each generated function has a name of its own (`churn_000042`), burns or (every third: `churn_sleep_000044`) sleeps for
--shortest to --longest milliseconds, and is dropped. Prints `ready PID`; at the end one line of JSON:
    {"functions": {NAME: {"start_ns", "wall_ns", "cpu_ns", "line"}, ...}, "distinct_addresses": COUNT}
start_ns is CLOCK_MONOTONIC, `line` is the line of the `def` in <churn>. Runs for --seconds, or until standard input
closes. Standard library only.
"""

import argparse
import json
import os
import random
import time

from lifetime import finished

BURN = """
def {name}(until):
    number = 0
    while clock() < until:
        number = (number * 3 + 1) % 1000003
"""
SLEEP = """
def {name}(until):
    while clock() < until:
        sleep(max(0, until - clock()) / 1e9)
"""


def generate(number):
    """A new function, and the line of its `def`."""
    sleeps = number % 3 == 2
    name = f"churn_sleep_{number:06}" if sleeps else f"churn_{number:06}"
    blank_lines = number % 50
    source = "\n" * blank_lines + (SLEEP if sleeps else BURN).format(name=name)
    namespace = {"clock": time.monotonic_ns, "sleep": time.sleep}
    exec(compile(source, "<churn>", "exec"), namespace)
    # Taken out, or the function would be part of a cycle and live until the next garbage collection.
    return namespace.pop(name), blank_lines + 2


def call(function, milliseconds):
    """Wall and CPU time of one call."""
    start_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
    function(start_ns + int(milliseconds * 1e6))
    cpu_ns = time.thread_time_ns() - cpu_ns
    return {"start_ns": start_ns, "wall_ns": time.monotonic_ns() - start_ns, "cpu_ns": cpu_ns}


def main():
    parser = argparse.ArgumentParser(description="Creates and drops code objects.")
    parser.add_argument("--seconds", type=float, help="run so long; default: until standard input closes")
    parser.add_argument("--shortest", type=float, default=1, help="milliseconds of a call")
    parser.add_argument("--longest", type=float, default=8)
    options = parser.parse_args()
    lengths = random.Random(1)
    functions, addresses, started = {}, set(), time.monotonic()
    print(f"ready {os.getpid()}", flush=True)
    while not finished(options.seconds, started):
        function, line = generate(len(functions))
        addresses.add(id(function.__code__))
        milliseconds = lengths.uniform(options.shortest, options.longest)
        functions[function.__name__] = dict(call(function, milliseconds), line=line)
        del function
    print(json.dumps({"functions": functions, "distinct_addresses": len(addresses)}), flush=True)


if __name__ == "__main__":
    main()
