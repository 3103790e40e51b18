"""Processes that multiprocessing and concurrent.futures have made, and one that os.fork() has: JSON of pid and name.

Each computes. Takes the start method, fork or spawn. On CPython 3.6 and newer. Ends with its standard input.
"""

import concurrent.futures
import json
import multiprocessing
import os
import sys
import threading
import time

from lifetime import die_with_parent


def who(_number=0):
    time.sleep(0.2)  # so that mostly each worker is asked
    return os.getpid(), multiprocessing.current_process().name


def both(ask):
    """What two workers say: while one starts late, the other may be asked twice."""
    told = {}
    while len(told) < 2:
        told.update(ask(who, range(2)))
    return told.items()


def compute(_number=0):
    die_with_parent()
    while True:
        sum(range(10_000))


def alone(pipe):
    pipe.send(who())
    compute()


def main():
    multiprocessing.set_start_method(sys.argv[1])
    here, there = multiprocessing.Pipe()
    multiprocessing.Process(target=alone, args=(there,), name="loader \N{SNAKE}", daemon=True).start()
    names = [here.recv()]
    pool = multiprocessing.Pool(2)
    names += both(pool.map)
    pool.map_async(compute, range(2), chunksize=1)
    executor = concurrent.futures.ProcessPoolExecutor(2)
    names += both(executor.map)
    for _ in range(2):
        executor.submit(compute)
    forked = os.fork() if sys.argv[1] == "fork" else 0
    if not forked and sys.argv[1] == "fork":
        compute()
    print(json.dumps({pid: name for pid, name in [*names, (forked or os.getpid(), "")]}), flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    compute()


if __name__ == "__main__":
    main()
