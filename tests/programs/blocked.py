"""Threads that each wait in another way; with "deadlock N" N threads that wait for one another in a circle, for
locks of each kind; with "holders" threads that hold locks which others want.

Prints one line of JSON when all are there: each thread's name -> its Python frames, innermost first, by
sys._current_frames(). It does not change until standard input is closed.
"""

import contextlib
import ctypes
import fcntl
import json
import mmap
import multiprocessing
import os
import queue
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = tempfile.mkdtemp() if sys.argv[1:] in ([], ["all"]) else ""
LONG_S = 300
LIBC = ctypes.CDLL(None)
HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(300)
"""


def thread(name, function, *arguments):
    threading.Thread(target=function, args=arguments, name=name, daemon=True).start()


def held(lock):
    lock.acquire()
    return lock


def take(lock):
    with lock:
        pass


def wait_for(condition):
    with condition:
        condition.wait()


def sleep():
    time.sleep(LONG_S)


def hold(lock, taken):
    with lock:
        taken.set()
        sleep()


def rlock_of_another():
    lock, taken = threading.RLock(), threading.Event()
    thread("rlock holder", hold, lock, taken)
    taken.wait()
    return lock


def epoll(fd):
    poller = select.epoll()
    poller.register(fd, select.EPOLLIN)
    poller.poll()


def poll(fd):
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    poller.poll()


def read_fifo(path):
    with open(path, "rb", buffering=0) as file:
        file.read(1)


def connect_to_full(path):
    for _ in range(8):
        socket.socket(socket.AF_UNIX).connect(path)


def deep(count):
    """More frames than a recording has of a thread."""
    if count:
        deep(count - 1)
    sleep()


def timer():
    """A descriptor of a timer: timerfd_create(2)."""
    fd = LIBC.timerfd_create(time.CLOCK_MONOTONIC, 0)
    LIBC.timerfd_settime(fd, 0, (ctypes.c_long * 4)(0, 0, LONG_S, 0), None)
    return fd


def page_that_never_comes():
    """The address of a page whose faults another would have to answer: include/uapi/linux/userfaultfd.h."""
    fd, size = LIBC.syscall(323, 0), 1 << 16  # SYS_userfaultfd
    KEPT.append(ctypes.c_char.from_buffer(mmap.mmap(-1, size)))
    page = ctypes.addressof(KEPT[-1])
    fcntl.ioctl(fd, 0xC018AA3F, struct.pack("QQQ", 0xAA, 0, 0))  # UFFDIO_API
    fcntl.ioctl(fd, 0xC020AA00, struct.pack("QQQQ", page, size, 1, 0))  # UFFDIO_REGISTER, of missing pages
    return page


def locked_by_a_child(kind):
    """The file and the process that has it locked."""
    path = os.path.join(FOLDER, kind)
    command = [sys.executable, "-c", HOLDER, path, kind]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    child.stdout.readline()
    CHILDREN.append(child)
    return open(path, "w")


CHILDREN, KEPT = [], []  # processes, with pid and kill(); what must not be freed


def start_all():
    thread("lock", take, held(threading.Lock()))
    thread("rlock", take, rlock_of_another())
    thread("condition", wait_for, threading.Condition())
    thread("queue", queue.Queue().get)
    thread("event", threading.Event().wait)
    thread("semaphore", take, threading.Semaphore(0))
    thread("sleep", sleep)
    reader, writer = os.pipe()
    thread("select", select.select, [reader], [], [])
    thread("poll", poll, reader)
    thread("epoll", epoll, reader)
    thread("pipe", os.read, reader, 1)
    first, second = socket.socketpair()
    thread("recv", first.recv, 1)
    server = socket.create_server(("127.0.0.1", 0))
    thread("accept", server.accept)
    full = socket.socket(socket.AF_UNIX)
    full.bind(os.path.join(FOLDER, "full"))
    full.listen(0)
    thread("connect", connect_to_full, os.path.join(FOLDER, "full"))
    fifo = os.path.join(FOLDER, "fifo")
    os.mkfifo(fifo)
    thread("fifo", read_fifo, fifo)
    opened = os.open(fifo, os.O_WRONLY)
    unopened = os.path.join(FOLDER, "unopened")
    os.mkfifo(unopened)
    thread("opened fifo", read_fifo, unopened)
    thread("eventfd", os.read, LIBC.eventfd(0, 0), 8)
    thread("timerfd", os.read, timer(), 8)
    thread("fault", LIBC.memset, ctypes.c_void_p(page_that_never_comes()), 0, 1)
    thread("deep", deep, 2000)
    child = subprocess.Popen(["sleep", str(LONG_S)])
    CHILDREN.append(child)
    thread("child", child.wait)
    thread("flock", fcntl.flock, locked_by_a_child("flock"), fcntl.LOCK_EX)
    thread("fcntl", fcntl.lockf, locked_by_a_child("lockf"), fcntl.LOCK_EX)
    sleeper = threading.Thread(target=sleep, name="joined", daemon=True)
    sleeper.start()
    thread("join", sleeper.join)
    pool = ThreadPoolExecutor(1, thread_name_prefix="pool")
    pool.submit(int).result()
    return reader, writer, first, second, server, full, opened, pool, [each.pid for each in CHILDREN]


def circle(count, kind):
    locks = [getattr(threading, kind)() for _ in range(count)]
    barrier = threading.Barrier(count)

    def take_two(first, second):
        with first:
            barrier.wait()
            take(second)

    def take(lock):
        with lock:
            pass

    for number in range(count):
        thread(f"{kind} {number}", take_two, locks[number], locks[(number + 1) % count])


def held_in_ways():
    """A thread for each way to hold a lock, and one that wants it by acquire()."""
    context = multiprocessing.get_context("fork")
    ways = {
        "generator": (threading.Lock(), entered_in_generator),
        "manager": (threading.Lock(), lambda lock: entered(locked(lock))),
        "stack": (threading.Lock(), entered_by_stack),
        "acquired rlock": (threading.RLock(), acquired),
        "plain condition": (threading.Condition(threading.Lock()), entered),
        "semaphore of processes": (context.Lock(), entered),
    }
    for name, (lock, hold) in ways.items():
        thread(f"holds {name}", hold, lock)
        TAKEN.wait()
        TAKEN.clear()
        thread(f"wants {name}", lock.acquire)
    forked, taken = context.Lock(), context.Event()
    child = context.Process(target=hold_in_child, args=(forked, taken))
    child.start()
    taken.wait()
    CHILDREN.append(child)
    thread("wants that of a child", forked.acquire)
    joined = threading.Thread(target=sleep, name="ends", daemon=True)
    joined.start()
    thread("joins ends", joined.join)


TAKEN = threading.Event()


def entered(manager):
    with manager:
        TAKEN.set()
        sleep()


def entered_in_generator(lock):
    def generator():
        with lock:
            TAKEN.set()
            sleep()
            yield

    next(generator())


def entered_by_stack(lock):
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock)
        TAKEN.set()
        sleep()


def acquired(lock):
    lock.acquire()
    TAKEN.set()
    sleep()


def hold_in_child(lock, taken):
    with lock:
        taken.set()
        sleep()


@contextlib.contextmanager
def locked(lock):
    with lock:
        yield


def holders():
    """Locks that others wait for: one held by `with`, though a thread waits for its condition; one by acquire()."""
    condition, lock, held = threading.Condition(), threading.Lock(), threading.Barrier(3)

    def wait():
        with condition:
            condition.wait()

    def hold():
        with condition:
            held.wait()
            time.sleep(LONG_S)

    def acquire():
        lock.acquire()
        held.wait()
        time.sleep(LONG_S)

    def take(wanted):
        with wanted:
            pass

    first = thread("in wait", wait)
    while not condition._waiters:
        time.sleep(0.001)
    thread("holder", hold)
    thread("acquirer", acquire)
    held.wait()
    thread("wants condition", take, condition)
    thread("wants lock", take, lock)
    return first


def frames_of(frame):
    found = []
    while frame is not None:
        found.append([frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return found


def all_frames():
    frames = sys._current_frames()
    return {
        it.name: frames_of(frames[it.ident]) for it in threading.enumerate() if it is not threading.current_thread()
    }


def sleepers():
    """Whether all other threads sleep."""
    others = [tid for tid in os.listdir("/proc/self/task") if int(tid) != os.getpid()]
    return all(Path(f"/proc/self/task/{tid}/stat").read_text().rpartition(")")[2].split()[0] == "S" for tid in others)


def settled():
    """The frames when all threads sleep and have not moved for three looks."""
    last, equal = None, 0
    while equal < 3:
        time.sleep(0.05)
        now = all_frames() if sleepers() else None
        equal = equal + 1 if now is not None and now == last else 0
        last = now
    return last


def say_and_stay():
    try:
        print(json.dumps({"frames": settled(), "children": [it.pid for it in CHILDREN]}), flush=True)
        sys.stdin.read()
    finally:
        for child in CHILDREN:
            child.kill()
    os._exit(0)  # threads that wait are not waited for


if __name__ == "__main__":
    sys.setrecursionlimit(5000)
    if sys.argv[1] == "all":
        kept = start_all()
    elif sys.argv[1] == "deadlock":
        for kind in ("Lock", "RLock", "Condition"):
            circle(int(sys.argv[2]), kind)
    elif sys.argv[1] == "holders":
        holders()
        held_in_ways()
    else:
        for number in range(int(sys.argv[2])):
            thread(f"many {number}", sleep)
    say_and_stay()
