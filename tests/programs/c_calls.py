"""Threads that spend their time in C with the GIL given away, each below a Python function of its own name.

`compress_all` (zlib), `derive_keys` (hashlib), `sleep_by_ctypes` (usleep of the C library, through ctypes) and
`sort_all` (list.sort, which keeps the GIL). Prints, when all have made a first call, one line of JSON:
    {"ready": true, "pid": PID, "threads": {TID: FUNCTION, ...}}
Runs for --seconds, or until standard input closes. Standard library only.
"""

import argparse
import ctypes
import hashlib
import json
import os
import random
import sys
import threading
import time
import zlib

BLOCK = bytes(random.Random(7).choices(b"abcdefgh", k=1 << 20))
NUMBERS = random.Random(7).sample(range(1 << 20), 20_000)
C_LIBRARY = ctypes.CDLL(None)
all_called = threading.Barrier(5)


def compress_all():
    zlib.compress(BLOCK[: 1 << 12])
    all_called.wait()
    while True:
        zlib.compress(BLOCK, 6)


def derive_keys():
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 10)
    all_called.wait()
    while True:
        hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 20_000)


def sleep_by_ctypes():
    C_LIBRARY.usleep(1)
    all_called.wait()
    while True:
        C_LIBRARY.usleep(50_000)


def sort_all():
    sorted(NUMBERS)
    all_called.wait()
    while True:
        sorted(NUMBERS)
        time.sleep(0.02)


def main():
    parser = argparse.ArgumentParser(description="Threads inside C functions.")
    parser.add_argument("--seconds", type=float, help="run so long; default: until standard input closes")
    options = parser.parse_args()
    threads = {}
    for function in (compress_all, derive_keys, sleep_by_ctypes, sort_all):
        thread = threading.Thread(target=function, daemon=True)
        thread.start()
        threads[thread.native_id] = function.__name__
    all_called.wait()
    print(json.dumps({"ready": True, "pid": os.getpid(), "threads": threads}), flush=True)
    if options.seconds is not None:
        time.sleep(options.seconds)
    else:
        sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
