"""Runs code made at run time, which /tmp/perf-PID.map names `spin_in_container`, and sleeps; x86-64.

PID is the process's own, whatever it is outside of its namespace. Prints `ready PID`.
"""

import ctypes
import mmap
import os
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
    return memory, ctypes.CFUNCTYPE(None, ctypes.c_ulong)(address)


def turn(spin):
    spin(40_000_000)


def rest():
    time.sleep(0.03)


def main():
    memory, spin = made()
    assert memory
    print("ready", os.getpid(), flush=True)
    while not finished(None, 0):
        turn(spin)
        rest()


if __name__ == "__main__":
    main()
