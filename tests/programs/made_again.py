"""Runs code made at run time that a jitdump names, and other code later at the same address; x86-64.

Prints `ready PID`. A line on standard input begins: `first_made` runs 0.4 s, then `second_made` as long, whose name is
written down, like that of the first, when the code is made. Answers with when each began and ended, as JSON
(CLOCK_MONOTONIC in nanoseconds), and ends with standard input.
"""

import ctypes
import json
import mmap
import os
import struct
import sys
import tempfile
import time

LOOP = bytes.fromhex("55 48 89 e5 48 89 f9 48 ff c9 75 fb 5d c3")  # as in made_inside.py
HEADER = struct.pack("<IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, os.getpid(), 0, 0)


def run(function, cpu_s):
    begin, end_s = time.monotonic_ns(), time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        function(1_000_000)
    return begin, time.monotonic_ns()


def main():
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    function = ctypes.CFUNCTYPE(None, ctypes.c_ulong)(address)
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/jit-{os.getpid()}.dump", "w+b", 0) as file:
        file.write(HEADER)
        mark = mmap.mmap(file.fileno(), len(HEADER), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
        print("ready", os.getpid(), flush=True)
        sys.stdin.readline()
        times = {}
        for name in ("first_made", "second_made"):
            memory[: len(LOOP)] = LOOP
            body = struct.pack("<IIQQQQ", os.getpid(), os.getpid(), address, address, len(LOOP), 0)
            body += name.encode() + b"\0" + LOOP
            file.write(struct.pack("<IIQ", 0, 16 + len(body), time.monotonic_ns()) + body)
            times[name] = run(function, 0.4)
        print(json.dumps(times), flush=True)
        sys.stdin.read()
        mark.close()


if __name__ == "__main__":
    main()
