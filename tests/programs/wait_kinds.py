"""Every kind of wait, each in a thread and a function of its own name, and how long each really waited.

Prints `ready PID`. A line on standard input starts the waits; when all are done, one line of JSON follows:
    {KIND: {"tid", "waker_tid", "rounds", "waited_ns", "cpu_ns", "elsewhere_ns"}, ...}
waker_tid: the thread that ends the waits, the child, or 0.
waited_ns: wall time less CPU time (CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID) of all calls of the function that is
called like the kind, so time in the run queue is in it. elsewhere_ns: the same of the rest of its thread. Then it waits
for the end of standard input.

The threads that end the waits:
    kind                              thread         function
    wait_lock                         releaser       release_lock
    wait_queue                        feeder         put_item (queue.Queue: Condition.notify is its innermost function)
    wait_recv, wait_socket_read       sender(-r)     send_bytes
    wait_pipe                         writer         write_pipe
    wait_select, wait_poll, wait_epoll  poker-s, poker-p, poker-e  make_readable
    wait_flock                        unlocker       release_flock
    wait_pty_read                     typist         type_key (the line discipline's kernel worker wakes the reader)
    wait_pty_write                    pty-reader     read_screen
    wait_sleep                        the timer
    wait_child                        the child, `sleep`
    wait_fsync, wait_disk_read, wait_fault           the disk

The first eleven and the sleep and the child wait at the same time (they need next to no CPU), in rounds of --round-ms;
those of the disk one after the other, until so much wall time was spent in their waits. wait_fsync waits for long,
wait_disk_read and wait_fault for single pages, which may be far below 100 us each.

Standard library only; CPython 3.9 and newer, wait_fault 3.8 and newer.
"""

import argparse
import fcntl
import json
import mmap
import os
import pty
import queue
import random
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tty
from contextlib import suppress
from functools import partial
from itertools import cycle

from clocks import name_thread

PAGE = mmap.PAGESIZE
FILE_BYTES = 64 << 20
PAGES_A_ROUND = 256
FSYNC_BYTES = 4 << 20


class Kind(threading.Thread):
    """Prepares and waits in turn until it has waited long enough, and keeps the account of the waits."""

    def __init__(self, wait, seconds, prepare=None):
        super().__init__(daemon=True)
        self.kind, self.wait, self.prepare = wait.__name__, wait, prepare
        self.seconds = seconds
        self.is_done = False
        self.waker_tid = 0
        self.rounds = self.waited_ns = self.cpu_ns = self.elsewhere_ns = 0

    def run(self):
        self.tid = name_thread(self.kind)
        wall_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        while self.waited_ns < self.seconds * 1e9:
            if self.prepare:
                self.prepare()
            self.measure()
        self.is_done = True
        all_ns = time.monotonic_ns() - wall_ns - (time.thread_time_ns() - cpu_ns)
        self.elsewhere_ns = all_ns - self.waited_ns

    def measure(self):
        """The clocks are read outside of the function, close to its call."""
        wall_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        self.wait()
        cpu_ns = time.thread_time_ns() - cpu_ns
        wall_ns = time.monotonic_ns() - wall_ns
        self.rounds += 1
        self.cpu_ns += cpu_ns
        self.waited_ns += wall_ns - cpu_ns

    def report(self):
        names = ("tid", "waker_tid", "rounds", "waited_ns", "cpu_ns", "elsewhere_ns")
        return {name: getattr(self, name) for name in names}


class Waker(threading.Thread):
    """Calls `wake` each `round_ms`, for as long as the kind still waits."""

    def __init__(self, name, kind, wake, round_ms):
        super().__init__(daemon=True)
        self.comm, self.kind, self.wake, self.round_s = name, kind, wake, round_ms / 1e3

    def run(self):
        self.kind.waker_tid = name_thread(self.comm)
        while not self.kind.is_done:
            time.sleep(self.round_s)
            self.wake()


# ---- Waits that a thread ends. Each returns the wait, what is done before it, and the thread and function that end it.


def lock():
    held = threading.Lock()
    held.acquire()

    def wait_lock():
        held.acquire()

    def release_lock():
        if held.locked():
            held.release()

    return wait_lock, None, "releaser", release_lock


def items():
    fed = queue.Queue()

    def wait_queue():
        fed.get()

    def put_item():
        fed.put(None)

    return wait_queue, None, "feeder", put_item


def socket_recv():
    ours, theirs = socket.socketpair()

    def wait_recv():
        ours.recv(1)

    def send_bytes():
        theirs.send(b".")

    return wait_recv, None, "sender", send_bytes


def socket_read():
    """The same by read(), which does not say that it is a socket; and over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()

    def wait_socket_read():
        os.read(ours.fileno(), 1)

    def send_bytes():
        theirs.send(b".")

    return wait_socket_read, None, "sender-r", send_bytes


def pipe():
    read_end, write_end = os.pipe()

    def wait_pipe():
        os.read(read_end, 1)

    def write_pipe():
        os.write(write_end, b".")

    return wait_pipe, None, "writer", write_pipe


def polled(call):
    """One that waits for a descriptor to become readable, by one of the three calls."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    poller = select.poll() if call == "poll" else select.epoll()
    poller.register(read_end, select.POLLIN)

    def wait_select():
        select.select([read_end], [], [])

    def wait_poll():
        poller.poll()

    def wait_epoll():
        poller.poll()

    def make_readable():
        os.write(write_end, b".")

    def drain():
        with suppress(BlockingIOError):  # when it comes for the first time
            os.read(read_end, 4096)

    wait = {"select": wait_select, "poll": wait_poll, "epoll": wait_epoll}[call]
    return wait, drain, f"poker-{call[0]}", make_readable


def file_lock():
    with tempfile.NamedTemporaryFile() as file:  # opened twice: each has locks of its own
        ours, theirs = (os.open(file.name, os.O_RDONLY) for _ in range(2))

    def take_back():
        fcntl.flock(ours, fcntl.LOCK_UN)
        fcntl.flock(theirs, fcntl.LOCK_EX)

    def wait_flock():
        fcntl.flock(ours, fcntl.LOCK_EX)

    def release_flock():
        fcntl.flock(theirs, fcntl.LOCK_UN)

    return wait_flock, take_back, "unlocker", release_flock


def pty_read():
    master, slave = pty.openpty()
    tty.setraw(slave)

    def wait_pty_read():
        os.read(slave, 1)

    def type_key():
        os.write(master, b".")

    return wait_pty_read, None, "typist", type_key


def pty_write():
    master, slave = pty.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)

    def wait_pty_write():
        os.write(slave, bytes(4096))

    def read_screen():
        with suppress(BlockingIOError):
            while os.read(master, 1 << 16):
                pass

    return wait_pty_write, None, "pty-reader", read_screen


POLLED = tuple(partial(polled, call) for call in ("select", "poll", "epoll"))
THREAD_WAITS = (lock, items, socket_recv, socket_read, pipe, *POLLED, file_lock, pty_read, pty_write)


# ---- Waits that no thread of this process ends.


def sleeping(seconds):
    def wait_sleep():
        time.sleep(seconds)

    return wait_sleep, None


def a_child(seconds):
    children = []

    def start_child():
        children.append(subprocess.Popen(["sleep", str(seconds)]))

    def wait_child():
        children[-1].wait()

    return wait_child, start_child


# ---- The disk.


def syncing(file):
    block = random.Random(1).randbytes(FSYNC_BYTES)

    def dirty_pages():
        os.pwrite(file.fileno(), block, 0)

    def wait_fsync():
        os.fsync(file.fileno())

    return wait_fsync, dirty_pages


def page_order(file):
    """For each round the numbers of other pages, in no order that read-ahead could guess."""
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
    numbers = list(range(FILE_BYTES // PAGE))
    random.Random(2).shuffle(numbers)
    return cycle(numbers[first : first + PAGES_A_ROUND] for first in range(0, len(numbers), PAGES_A_ROUND))


def reading(file):
    rounds, pages = page_order(file), []

    def drop_cache():
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        pages[:] = next(rounds)

    def wait_disk_read():
        for page in pages:
            os.pread(file.fileno(), PAGE, page * PAGE)

    return wait_disk_read, drop_cache


def faulting(file):
    rounds, pages = page_order(file), []
    mapping = mmap.mmap(file.fileno(), FILE_BYTES, access=mmap.ACCESS_READ)
    mapping.madvise(mmap.MADV_RANDOM)

    def drop_pages():
        mapping.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        pages[:] = next(rounds)

    def wait_fault():
        for page in pages:
            mapping[page * PAGE]

    return wait_fault, drop_pages


def wait_for_threads_and_timers(seconds, round_ms):
    """All at once; returns the kinds."""
    kinds, wakers = [], []
    for make in THREAD_WAITS:
        wait, prepare, name, wake = make()
        kinds.append(Kind(wait, seconds, prepare))
        wakers.append(Waker(name, kinds[-1], wake, round_ms))
    # Several children: the kernel side does not hear of each wake-up, and one child would make one.
    for wait, prepare in (sleeping(round_ms / 1e3), a_child(seconds / 6)):
        kinds.append(Kind(wait, 0.9 * seconds, prepare))
    for thread in kinds + wakers:
        thread.start()
    for kind in kinds:
        kind.join()
    return kinds


def wait_for_disk(seconds, file):
    """One after the other; returns the kinds."""
    kinds = []
    for make in (syncing, reading, faulting):
        wait, prepare = make(file)
        kinds.append(Kind(wait, seconds, prepare))
        kinds[-1].start()
        kinds[-1].join()
    return kinds


def main():
    parser = argparse.ArgumentParser(description="Waits in every way, and knows for how long.")
    parser.add_argument("--seconds", type=float, default=1, help="how long to wait in each way")
    parser.add_argument("--round-ms", type=float, default=50, help="length of one wait for a thread or the timer")
    parser.add_argument("--directory", default="/var/tmp", help="on a disk")
    options = parser.parse_args()
    with tempfile.TemporaryFile(dir=options.directory) as file:
        for _ in range(FILE_BYTES >> 20):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())  # pages that are not written yet cannot be dropped
        print(f"ready {os.getpid()}", flush=True)
        sys.stdin.readline()
        kinds = wait_for_threads_and_timers(options.seconds, options.round_ms)
        kinds += wait_for_disk(options.seconds, file)
        print(json.dumps({kind.kind: kind.report() for kind in kinds}), flush=True)
        sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
