"""Threads and processes that are born and die all the time, each in functions and under names of its own.

Begins when a line comes on standard input, after `ready PID`. Each 100 ms it starts --threads threads, named
`born_NUMBER`, and --processes forked children; each computes for about a millisecond (--work) in `thread_work` or
`child_work`. `born_0` sleeps all the time. Ends after --seconds with a line of JSON: {"cpu_s": CPU time since it began,
of itself and its children by their cumulative times, "threads": {tid: [names]}, "children": [pids]}. Standard library
only.
"""

import argparse
import json
import os
import resource
import sys
import threading
import time

PERIOD_S = 0.1
born = {}


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def thread_work(seconds):
    born.setdefault(threading.get_native_id(), []).append(threading.current_thread().name)
    burn(seconds)


def child_work(seconds):
    burn(seconds)


def fork_child(seconds):
    pid = os.fork()
    if not pid:
        child_work(seconds)
        os._exit(0)
    return pid


def cpu_s():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def churn(options):
    children, count, turn = [], 0, time.monotonic()
    end = turn + options.seconds
    while time.monotonic() < end:
        forked = [fork_child(options.work) for _ in range(options.processes)]
        threads = []
        for _ in range(options.threads):
            count += 1
            threads.append(threading.Thread(target=thread_work, args=(options.work,), name=f"born_{count}"))
            threads[-1].start()
        for thread in threads:
            thread.join()
        for pid in forked:
            os.waitpid(pid, 0)
        children += forked
        turn = max(turn + PERIOD_S, time.monotonic() - PERIOD_S)
        time.sleep(max(0, turn - time.monotonic()))
    return children


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--threads", type=int, default=20)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--work", type=float, default=0.001)
    options = parser.parse_args()
    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    may_end = threading.Event()
    lasting = threading.Thread(target=lambda: (thread_work(0), may_end.wait()), name="born_0")
    lasting.start()
    before = cpu_s()
    children = churn(options)
    print(json.dumps({"cpu_s": cpu_s() - before, "threads": born, "children": children}), flush=True)
    may_end.set()
    sys.stdin.read()


if __name__ == "__main__":
    main()
