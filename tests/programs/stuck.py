"""Programs that hang, each in another way, after one line: `ready PID`. Who starts one ends its session.

python stuck.py KIND [later]

later: it says so first, and hangs after a line on standard input.
"""

import ctypes
import fcntl
import multiprocessing
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

LOCK = threading.Lock()
LISTENER = None  # kept open: its queue takes the connection, and no one answers


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def tell():
    print("ready", os.getpid(), flush=True)


def killed_holder():
    """A lock of multiprocessing whose holder was killed."""
    lock = multiprocessing.get_context("fork").Lock()
    child = os.fork()
    if not child:
        lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    tell()
    with lock:  # hangs
        pass


def held_at_fork():
    """A lock that another thread held at the fork: nobody in the child has it."""
    held = threading.Event()

    def hold():
        with LOCK:
            held.set()
            time.sleep(60)

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    if os.fork():
        os.wait()
        os._exit(0)
    tell()
    LOCK.acquire()  # hangs


def twice():
    """The same lock twice."""
    LOCK.acquire()
    tell()
    LOCK.acquire()  # hangs


def full_pipe():
    """A pipe that nobody reads."""
    _, writer = os.pipe()
    tell()
    while True:
        os.write(writer, b"log line " * 100)  # hangs


def file_locked():
    """A file that another process has locked."""
    with locked_by_another(fcntl.flock) as file:
        tell()
        fcntl.flock(file, fcntl.LOCK_EX)  # hangs


def range_locked():
    """A range of a file that another process has locked."""
    with locked_by_another(fcntl.lockf) as file:
        tell()
        fcntl.lockf(file, fcntl.LOCK_EX)  # hangs


def locked_by_another(lock):
    """A file that a child has locked by this function."""
    handle, path = tempfile.mkstemp(prefix="stuck-file")
    told, tells = os.pipe()
    if not os.fork():
        end_with_parent()
        with open(path, "w") as file:
            lock(file, fcntl.LOCK_EX)
            os.write(tells, b".")
            time.sleep(60)
    os.read(told, 1)
    os.close(handle)
    file = open(path, "w")  # noqa: SIM115 (the caller closes it)
    os.unlink(path)
    return file


def child():
    """A child that never ends."""
    process = subprocess.Popen(["sleep", "60"])
    tell()
    process.wait()  # hangs


def no_answer():
    """A server that takes the connection and says nothing."""
    global LISTENER
    LISTENER = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(LISTENER.getsockname())
    client.sendall(b"GET / HTTP/1.0\r\n\r\n")
    tell()
    client.recv(100)  # hangs


def no_answer_select():
    """The same, waited for by select()."""
    global LISTENER
    LISTENER = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(LISTENER.getsockname())
    client.sendall(b"GET / HTTP/1.0\r\n\r\n")
    tell()
    select.select([client], [], [])  # hangs


def never_set():
    """An event that no one sets."""
    tell()
    threading.Event().wait()  # hangs


def empty_queue():
    """The next item of a queue whose makers have ended."""
    items = queue.Queue()
    tell()
    items.get()  # hangs


def joined():
    """A thread that sleeps for ever."""
    thread = threading.Thread(target=time.sleep, args=(60,), name="sleeper", daemon=True)
    thread.start()
    tell()
    thread.join()  # hangs


def held():
    """A lock whose holder sleeps."""
    has_it = threading.Event()

    def hold():
        with LOCK:
            has_it.set()
            time.sleep(60)

    threading.Thread(target=hold, daemon=True, name="holder").start()
    has_it.wait()
    tell()
    with LOCK:  # hangs
        pass


def stopped():
    """Nothing, until it is stopped by who started it."""
    tell()
    while True:
        time.sleep(60)  # hangs


def released():
    """Not for ever: a thread waits for a lock that is given when a line comes in."""
    LOCK.acquire()
    has_told = threading.Event()

    def take():
        has_told.set()
        with LOCK:
            pass

    thread = threading.Thread(target=take, name="taker")
    thread.start()
    has_told.wait()
    tell()
    sys.stdin.readline()
    LOCK.release()
    thread.join()
    print("released", flush=True)
    sys.stdin.readline()


def circle():
    """Two threads, two locks."""
    other = threading.Lock()
    meet = threading.Barrier(2)

    def take(first, second):
        with first:
            meet.wait()
            with second:
                pass

    threads = [
        threading.Thread(target=take, args=pair, name=name, daemon=True)
        for name, pair in (("left", (LOCK, other)), ("right", (other, LOCK)))
    ]
    for thread in threads:
        thread.start()
    tell()
    for thread in threads:
        thread.join()


def main():
    end_with_parent()
    if "later" in sys.argv[2:]:
        print("ready", os.getpid(), flush=True)
        sys.stdin.readline()
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
