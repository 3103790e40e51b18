"""A process that forks, spawns and starts threads all the time, so that tasks are born and die while a recording runs.

A round: a thread, a forked child and a spawned child (a new Python), one after the other; each works for about 20 ms in
`thread_work`, `forked_work` or `spawned_work`; the spawned one for 60 ms, for its interpreter has to be found. One
forked and one spawned child live from before `ready` to the end.
Prints one line of JSON when these run:
    {"ready": true, "pid": PID, "forked": PID, "spawned": PID}
and at the end {"rounds": COUNT, "threads": {TID: TASK}, "forked": {PID: TASK}, "spawned": {PID: TASK}}, with TASK
{"start_ns", "end_ns"} in CLOCK_MONOTONIC, of tasks that were born and have died since `ready`. A number that was given
out twice is listed once. Runs for --seconds, or until standard input closes. Standard library only.
"""

import argparse
import json
import os
import select
import subprocess
import sys
import threading
import time
import warnings

from lifetime import finished

LEAST_TURNS = 10  # where others have the CPUs all the time, too


def work_until(until_ns):
    turns = 0
    while turns < LEAST_TURNS or time.monotonic_ns() < until_ns:
        sum(range(2000))
        time.sleep(0.001)
        turns += 1


def thread_work(until_ns):
    work_until(until_ns)


def forked_work(until_ns):
    work_until(until_ns)


def spawned_work(until_ns):
    work_until(until_ns)


def work_until_closed(work, descriptor):
    """Works in small portions until the other end of the pipe is closed, also when the parent was killed."""
    while not select.select([descriptor], [], [], 0)[0]:
        work(time.monotonic_ns() + 20_000_000)


def fork(function, *arguments):
    pid = os.fork()
    if pid == 0:
        function(*arguments)
        os._exit(0)
    return pid


def spawn(*options, **pipes):
    return subprocess.Popen([sys.executable, __file__, "--spawned", *options], **pipes)


def run_thread():
    thread = threading.Thread(target=thread_work, args=(time.monotonic_ns() + 20_000_000,))
    thread.start()
    thread.join()
    return thread.native_id


def run_forked():
    pid = fork(forked_work, time.monotonic_ns() + 20_000_000)
    os.waitpid(pid, 0)
    return pid


def run_spawned():
    child = spawn("--seconds", "0.06")
    child.wait()
    return child.pid


KINDS = {"threads": run_thread, "forked": run_forked, "spawned": run_spawned}


def run_rounds(seconds):
    report = {"rounds": 0, "threads": {}, "forked": {}, "spawned": {}}
    started = time.monotonic()
    while not finished(seconds, started):
        for kind, run in KINDS.items():
            start_ns = time.monotonic_ns()
            task = run()
            report[kind][task] = {"start_ns": start_ns, "end_ns": time.monotonic_ns()}
        report["rounds"] += 1
    return report


def run_parent(seconds):
    read_end, write_end = os.pipe()
    spawned = spawn(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    spawned.stdout.readline()
    forked = fork(lambda: (os.close(write_end), spawned.stdin.close(), work_until_closed(forked_work, read_end)))
    print(json.dumps({"ready": True, "pid": os.getpid(), "forked": forked, "spawned": spawned.pid}), flush=True)
    report = run_rounds(seconds)
    os.close(write_end)
    spawned.stdin.close()
    os.waitpid(forked, 0)
    spawned.wait()
    print(json.dumps(report), flush=True)


def run_spawned_child(seconds):
    if seconds is not None:
        spawned_work(time.monotonic_ns() + int(seconds * 1e9))
    else:
        print("ready", flush=True)
        work_until_closed(spawned_work, sys.stdin.fileno())


def main():
    parser = argparse.ArgumentParser(description="Makes threads and processes that come and go.")
    parser.add_argument("--seconds", type=float, help="run so long; default: until standard input closes")
    parser.add_argument("--spawned", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # No other thread is alive when this program forks.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    if options.spawned:
        run_spawned_child(options.seconds)
    else:
        run_parent(options.seconds)


if __name__ == "__main__":
    main()
