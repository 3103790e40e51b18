"""A program that one known thing bounds: bounds.py KIND. Prints a line when it is under way; ends with its stdin.

Each kind is a function whose line with "here" is the place that a report should name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
import zlib

DATA = os.urandom(1 << 20)


def python() -> None:
    while True:
        str(list(range(1000)))  # here: python


def native() -> None:
    while True:
        zlib.compress(DATA, 9)  # here: native


def gil() -> None:
    crowd(8, fight)


def fight() -> None:
    while True:
        [number * number for number in range(100)]  # here: gil


def lock() -> None:
    guard = threading.Lock()
    crowd(6, lambda: audit(guard))


def audit(guard: threading.Lock) -> None:
    with tempfile.TemporaryFile(dir=".") as file:
        while True:
            with guard:  # here: lock
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())


def sleep() -> None:
    while True:
        time.sleep(0.02)  # here: sleep


def child() -> None:
    slow = [sys.executable, "-c", "import sys, time\nfor line in sys.stdin: time.sleep(0.05); print(line, flush=True)"]
    with subprocess.Popen(slow, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None
        while True:
            process.stdin.write(b"ask\n")
            process.stdout.read(5)  # here: child


def joined() -> None:
    while True:
        worker = threading.Thread(target=digest)
        worker.start()
        worker.join()


def digest() -> None:
    for _ in range(20):
        zlib.compress(DATA, 9)  # here: joined


def idle() -> None:
    waits = threading.Event()
    while True:
        waits.wait(0.1)


def crowd(count: int, work) -> None:  # type: ignore[no-untyped-def]
    threads = [threading.Thread(target=work, name=f"worker-{number}", daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    threading.Thread(target=globals()[sys.argv[1]], name="main-work", daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
