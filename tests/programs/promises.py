"""What each promise of bpfprof needs once, in known places: computing, naps, a lock, the GIL, a pipe, a child.

Says "ready", begins when it is told to, and says as JSON {function: seconds} how long each took by its own clocks:
CPU time of `compute`, `compete` and (in a child) `work`, wall time of `nap`, `wait_for_lock` and `read_pipe`. Goes on
until it is told to end. Standard library only, CPython 3.6 and newer.
"""

import json
import os
import subprocess
import sys
import threading
import time

CPU_S = 0.6
NAP_S = 0.05
spent = {}


def of_thread():
    """CPU time of this thread; CPython 3.6 has no thread_time()."""
    return time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)


def timed(function, clock, *arguments):
    begin = clock()
    function(*arguments)
    spent[function.__name__] = spent.get(function.__name__, 0) + clock() - begin


def compute():
    end = of_thread() + CPU_S
    while of_thread() < end:
        for _ in range(20000):
            pass


def compete():
    end = of_thread() + CPU_S
    while of_thread() < end:
        for _ in range(20000):
            pass


def nap():
    for _ in range(20):
        time.sleep(NAP_S)


def wait_for_lock(lock):
    with lock:
        pass


def read_pipe(fd):
    os.read(fd, 1)


def work():
    """In the child; for longer, as it may have run for 0.3 s on a busy machine before its functions are known."""
    end = of_thread() + 2 * CPU_S
    while of_thread() < end:
        for _ in range(20000):
            pass


def main():
    if sys.argv[1:] == ["child"]:
        begin = of_thread()
        work()
        print(of_thread() - begin)
        return
    lock, (reading, writing) = threading.Lock(), os.pipe()
    told = [
        threading.Thread(target=timed, args=(nap, time.monotonic), name="napper"),
        threading.Thread(target=timed, args=(wait_for_lock, time.monotonic, lock), name="waiter"),
        threading.Thread(target=timed, args=(read_pipe, time.monotonic, reading), name="reader"),
        threading.Thread(target=timed, args=(compete, of_thread), name="competitor"),
    ]
    print("ready", flush=True)
    sys.stdin.readline()
    with lock:
        for thread in told:
            thread.start()
        timed(compute, of_thread)
    os.write(writing, b"x")
    for thread in told:
        thread.join()
    child = subprocess.run([sys.executable, __file__, "child"], stdout=subprocess.PIPE, check=True)
    spent["work"] = float(child.stdout)
    print(json.dumps(spent), flush=True)
    sys.stdin.readline()


main()
