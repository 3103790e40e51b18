"""Many threads that sleep from before the recording until after it, each in a function of its own name.

A profiler that learns of a wait when it ends never hears of these. The waits are of several kinds (sleep, lock, event,
pipe, poll), and the names of the functions say which: `pipe_007`. Prints, when all are asleep, one line of JSON:
    {"ready": true, "pid": PID, "threads": {TID: FUNCTION, ...}}
Runs for --seconds, or until standard input closes. Standard library only.
"""

import argparse
import json
import os
import select
import sys
import threading
import time
from types import FunctionType

LOCK = threading.Lock()
EVENT = threading.Event()
READ_END, WRITE_END = os.pipe()


def sleep(started):
    started.set()
    time.sleep(1e6)


def lock(started):
    started.set()
    LOCK.acquire()


def event(started):
    started.set()
    EVENT.wait()


def pipe(started):
    started.set()
    os.read(READ_END, 1)


def poll(started):
    started.set()
    select.select([READ_END], [], [])


KINDS = (sleep, lock, event, pipe, poll)


def renamed(function, name):
    """The same function under another name, as the code object tells it."""
    names = {"co_name": name}
    if hasattr(function.__code__, "co_qualname"):
        names["co_qualname"] = name
    return FunctionType(function.__code__.replace(**names), globals(), name)


def asleep(tid):
    """State and number of switches of a thread; None unless it sleeps."""
    with open(f"/proc/self/task/{tid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return fields["voluntary_ctxt_switches"] if fields["State"].split()[0] == "S" else None


def wait_until_all_sleep(tids):
    """Twice the same number of switches, with the GIL free for a while between: it is their own wait, not the GIL's."""
    before = None
    while before is None or None in before or before != [asleep(tid) for tid in tids]:
        before = [asleep(tid) for tid in tids]
        time.sleep(0.02)


def main():
    parser = argparse.ArgumentParser(description="Threads that sleep all the time.")
    parser.add_argument("--count", type=int, default=40, help="threads")
    parser.add_argument("--seconds", type=float, help="run so long; default: until standard input closes")
    options = parser.parse_args()
    LOCK.acquire()
    threads = {}
    for number in range(options.count):
        kind = KINDS[number % len(KINDS)]
        function = renamed(kind, f"{kind.__name__}_{number:03}")
        started = threading.Event()
        thread = threading.Thread(target=function, args=(started,), daemon=True)
        thread.start()
        started.wait()
        threads[thread.native_id] = function.__name__
    wait_until_all_sleep(list(threads))
    print(json.dumps({"ready": True, "pid": os.getpid(), "threads": threads}), flush=True)
    if options.seconds is not None:
        time.sleep(options.seconds)
    else:
        sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
