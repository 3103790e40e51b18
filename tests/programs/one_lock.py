"""A thread waits for a lock five times for 0.2 s; then two compute for a second each.

Says how long the naps were that it waited for, in microseconds.
"""

import threading
import time

NAP_S, NAPS = 0.2, 5


def spin():
    end = time.thread_time() + 1
    while time.thread_time() < end:
        sum(range(100))


def waits(lock):
    with lock:
        pass


def wait(lock, is_held, is_done):
    for _ in range(NAPS):
        is_held.wait()
        is_held.clear()
        waits(lock)
        is_done.set()


def hold(lock, is_held, is_done):
    for _ in range(NAPS):
        with lock:
            is_held.set()
            begin_s = time.monotonic()
            nap()
            napped_s.append(time.monotonic() - begin_s)
        is_done.wait()
        is_done.clear()


def nap():
    time.sleep(NAP_S)


napped_s = []
lock, is_held, is_done = threading.Lock(), threading.Event(), threading.Event()
ways = [[("wait", wait, (lock, is_held, is_done)), ("hold", hold, (lock, is_held, is_done))]]
ways += [[("first", spin, ()), ("second", spin, ())]]
for way in ways:
    threads = [threading.Thread(target=target, name=name, args=args) for name, target, args in way]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(round(1e6 * sum(napped_s)))
