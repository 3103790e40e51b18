"""A thread that has a name only 0.3 s after its birth, as it waits for the GIL until then, and ends before the program.

Says "ready", begins when it is told to, says the thread's tid, and goes on until it is told to end. CPython 3.8 and
newer.
"""

import sys
import threading
import time


def hold_the_gil():
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass


def main():
    print("ready", flush=True)
    sys.stdin.readline()
    sys.setswitchinterval(10)
    thread = threading.Thread(target=time.sleep, args=(1,), name="late")
    # start() waits until the thread has said that it runs; with this it computes first.
    wait, thread._started.wait = thread._started.wait, hold_the_gil
    thread.start()
    wait()
    thread.join()
    print(thread.native_id, flush=True)
    sys.stdin.readline()


main()
