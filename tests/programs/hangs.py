"""Waits very often and then hangs. A line on standard input begins it, one on standard output says that it hangs."""

import os
import sys
import threading

TURNS = 4000


def answer(reads, writes):
    while os.read(reads, 1):
        os.write(writes, b"x")


def hangs(lock):
    with lock:
        lock.acquire()


def main():
    asked, answered = os.pipe(), os.pipe()
    threading.Thread(target=answer, args=(asked[0], answered[1]), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(TURNS):
        os.write(asked[1], b"x")
        os.read(answered[0], 1)
    print("hangs", flush=True)
    hangs(threading.Lock())


main()
