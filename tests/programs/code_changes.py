"""Does what it is told, one line of JSON on standard input at a time, with code that comes, goes and is made.

    {"do": "call", "path": LIBRARY, "function": NAME, "ms": N, "unlink": BOOL}   dlopen, call, dlclose
    {"do": "fork", the same, "exec": [PROGRAM, ...] or null}                    the same in a child, which then may exec
    {"do": "make", "ms": N, "map": BOOL, "shared": BOOL}   a loop in anonymous memory, named in /tmp/perf-PID.map or not
Answers each with {"pid": PID, "start_ns": .., "end_ns": .., "address": ..}: who was busy from when to when
(CLOCK_MONOTONIC), and where; `ms` are of CPU time. Prints `ready PID` first; ends when standard input closes. Whoever
runs it removes the map. Standard library only.
"""

import _ctypes
import ctypes
import json
import mmap
import os
import sys
import time

# push rbp; mov rbp, rsp; mov rcx, rdi; again: dec rcx; jnz again; pop rbp; ret
LOOP = bytes.fromhex("55 4889e5 4889f9 48ffc9 75fb 5d c3")
made = []


def call(task):
    library = ctypes.CDLL(task["path"])
    if task.get("unlink"):
        os.unlink(task["path"])
    function = library[task["function"]]
    address = ctypes.cast(function, ctypes.c_void_p).value
    start_ns = time.monotonic_ns()
    function(ctypes.c_long(task["ms"]))
    end_ns = time.monotonic_ns()
    _ctypes.dlclose(library._handle)
    return {"pid": os.getpid(), "start_ns": start_ns, "end_ns": end_ns, "address": address}


def fork(task):
    start_ns = time.monotonic_ns()
    pid = os.fork()
    if pid == 0:
        call(task)
        if task["exec"]:
            os.execv(task["exec"][0], task["exec"])
        os._exit(0)
    os.waitpid(pid, 0)
    return {"pid": pid, "start_ns": start_ns, "end_ns": time.monotonic_ns(), "address": 0}


def make(task):
    flags = mmap.MAP_ANONYMOUS | (mmap.MAP_SHARED if task["shared"] else mmap.MAP_PRIVATE)
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    made.append(memory)
    memory.write(LOOP)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if task["map"]:
        with open(f"/tmp/perf-{os.getpid()}.map", "a") as file:
            file.write(f"{address:x} {len(LOOP):x} made_loop\n")
    loop = ctypes.CFUNCTYPE(None, ctypes.c_ulong)(address)
    start_ns, end = time.monotonic_ns(), time.thread_time_ns() + task["ms"] * 1_000_000
    while time.thread_time_ns() < end:
        loop(10_000_000)
    return {"pid": os.getpid(), "start_ns": start_ns, "end_ns": time.monotonic_ns(), "address": address}


def main():
    print(f"ready {os.getpid()}", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        print(json.dumps({"call": call, "fork": fork, "make": make}[task["do"]](task)), flush=True)


if __name__ == "__main__":
    main()
