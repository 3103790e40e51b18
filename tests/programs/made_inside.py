"""Runs code made at run time, which /tmp/perf-PID.map and /tmp/jit-PID.dump name, and sleeps; x86-64.

It is `spin_in_container` and `dumped_in_container`. PID is the process's own, whatever it is outside of its namespace.
Prints `ready PID`.
"""

import ctypes
import mmap
import os
import struct
import time

from lifetime import finished

# push rbp; mov rbp, rsp; mov rcx, rdi; dec rcx; jnz to dec; pop rbp; ret
LOOP = bytes.fromhex("55 48 89 e5 48 89 f9 48 ff c9 75 fb 5d c3")


def made():
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(LOOP)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with open(f"/tmp/perf-{os.getpid()}.map", "w") as file:
        file.write(f"{address:x} {len(LOOP):x} spin_in_container\n")
    memory.write(LOOP)
    body = struct.pack("<IIQQQQ", 1, 1, address + len(LOOP), address + len(LOOP), len(LOOP), 0)
    body += b"dumped_in_container\0" + LOOP
    with open(f"/tmp/jit-{os.getpid()}.dump", "w+b") as dump:
        dump.write(struct.pack("<IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, os.getpid(), 0, 0))
        dump.write(struct.pack("<IIQ", 0, 16 + len(body), time.monotonic_ns()) + body)
        dump.flush()
        mark = mmap.mmap(dump.fileno(), 40, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_ulong)
    return (memory, mark), (kind(address), kind(address + len(LOOP)))


def turn(spins):
    for spin in spins:
        spin(40_000_000)


def rest():
    time.sleep(0.03)


def main():
    kept, spins = made()
    assert kept
    print("ready", os.getpid(), flush=True)
    while not finished(None, 0):
        turn(spins)
        rest()


if __name__ == "__main__":
    main()
