"""Names that try to act on whoever shows them: escape sequences, line ends and the `;` that joins frames.

The process, a second thread, a function and its file are named so. Prints `ready PID` when all have their names; the
functions then use the CPU and sleep by turns. Runs for --seconds, or until standard input closes. Standard library
only.
"""

import argparse
import os
import threading
import time
from types import FunctionType

from lifetime import finished

PROCESS_NAME = b"\x1b[31mred\n;\x07p"
THREAD_NAME = b"\x1b]0;t\x07\r\n;\x9b2J"
FUNCTION_NAME = "evil\x1b[2J\n;\x9b1A\u2028\u202e (fake.py:1) 999"
FILE_NAME = "/tmp/\x1b]0;owned\x07/dir;with\n/evil\x1b[8m.py"


def name_this_thread(name):
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "wb") as comm:
        comm.write(name)


def work():
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        sum(range(1000))
    time.sleep(0.01)


def hostile():
    names = {"co_name": FUNCTION_NAME, "co_filename": FILE_NAME}
    if hasattr(work.__code__, "co_qualname"):
        names["co_qualname"] = FUNCTION_NAME
    return FunctionType(work.__code__.replace(**names), globals(), "work")


def run_thread(named, function):
    name_this_thread(THREAD_NAME)
    named.set()
    while True:
        function()


def main():
    parser = argparse.ArgumentParser(description="Names with escape sequences.")
    parser.add_argument("--seconds", type=float, help="run so long; default: until standard input closes")
    options = parser.parse_args()
    function, named = hostile(), threading.Event()
    threading.Thread(target=run_thread, args=(named, function), daemon=True).start()
    named.wait()
    name_this_thread(PROCESS_NAME)
    print(f"ready {os.getpid()}", flush=True)
    started = time.monotonic()
    while not finished(options.seconds, started):
        function()
    os._exit(0)


if __name__ == "__main__":
    main()
