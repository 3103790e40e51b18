"""A process whose main thread ends while the thread `left` goes on, until the input ends.

argv[1]: how it ends, `pthread_exit` or `exit`. argv[2], if any: it waits for a line of input first. Prints "ready", and
"ended" when the main thread has. `left` computes in Python, and in a library that is loaded then.
"""

import ctypes
import select
import sys
import threading


def work():
    total = 0
    for number in range(20000):
        total += number
    return total


def digest(hashlib):
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 1000)


def has_ended():
    with open("/proc/self/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def left():
    while not has_ended():
        pass
    import hashlib

    print("ended", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        work()
        digest(hashlib)


def main():
    print("ready", flush=True)
    if sys.argv[2:]:
        sys.stdin.readline()
    threading.Thread(target=left, name="left").start()
    c = ctypes.CDLL(None)
    if sys.argv[1] == "exit":
        c.syscall(60, 0)
    c.pthread_exit(None)


main()
