"""A process whose memory lies on a FUSE file system whose server answers no more. `unanswered.py FOLDER`, as root.

The mount is as fusermount makes it, and the process is an ordinary user's. Each 0.3 s a thread of it waits in poll()
by a list that cannot be read any more. Prints its pid when the server has fallen silent, and ends when standard input
closes. Until then no signal ends who reads what is not answered.
"""

import ctypes
import itertools
import mmap
import os
import signal
import struct
import sys
import threading
import time

PAGES, PAGE, UID, FILE = 64, 4096, 4242, 2
# include/uapi/linux/fuse.h
LOOKUP, FORGET, GETATTR, OPEN, READ, INIT, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 15, 26, 36, 42
REQUEST, ANSWER = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
MS_NOSUID_NODEV, MNT_DETACH, MADV_DONTNEED = 6, 2, 4
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.poll.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def attributes(inode):
    size, mode = (0, 0o40755) if inode == 1 else (PAGES * PAGE, 0o100644)
    return struct.pack("<6Q10I", inode, size, *[0] * 7, mode, 1, UID, UID, 0, PAGE, 0)


def answer(action, inode, request):
    """(errno, bytes); None: none is expected."""
    if action == INIT:
        return 0, struct.pack("<4I2H2I2H8I", 7, 31, PAGE, 0, 1, 1, PAGE, 0, 0, 0, *[0] * 8)
    if action == LOOKUP:
        return 0, struct.pack("<4Q2I", FILE, 0, 3600, 3600, 0, 0) + attributes(FILE)
    if action == GETATTR:
        return 0, struct.pack("<Q2I", 3600, 0, 0) + attributes(inode)
    if action == OPEN:
        return 0, struct.pack("<Q2I", 1, 0, 0)
    if action == READ:
        _, offset, size = struct.unpack_from("<QQI", request, REQUEST.size)
        return 0, bytes(max(0, min(size, PAGES * PAGE - offset)))
    return None if action in (FORGET, INTERRUPT, BATCH_FORGET) else (-38, b"")


def serve(connection, is_silent):
    while True:
        request = os.read(connection, 1 << 17)
        _, action, unique, inode, *_ = REQUEST.unpack_from(request)
        found = answer(action, inode, request)
        if found is not None and not (action == READ and is_silent):
            os.write(connection, ANSWER.pack(ANSWER.size + len(found[1]), found[0], unique) + found[1])


def be_target(path, is_ready, told):
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    fd = os.open(path, os.O_RDONLY)
    base = libc.mmap(None, PAGES * PAGE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    ctypes.string_at(base, PAGES * PAGE)
    os.write(is_ready, b"x")
    os.read(told, 1)
    for number in itertools.cycle(range(PAGES)):
        threading.Thread(target=libc.poll, args=(base + number * PAGE, 2, 200), daemon=True).start()
        time.sleep(0.1)  # it waits in poll() by now
        drop(base + number * PAGE, fd, number * PAGE)
        time.sleep(0.2)


def drop(address, fd, offset):
    libc.madvise(address, PAGE, MADV_DONTNEED)
    os.posix_fadvise(fd, offset, PAGE, os.POSIX_FADV_DONTNEED)


def main():
    folder = sys.argv[1]
    connection = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={connection},rootmode=40000,user_id={UID},group_id={UID},allow_other"
    if libc.mount(b"unanswered", folder.encode(), b"fuse", MS_NOSUID_NODEV, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    is_silent = []
    told, tell = os.pipe()
    ready, is_ready = os.pipe()
    target = os.fork()
    if target == 0:
        os.close(connection)
        be_target(f"{folder}/file", is_ready, told)
        os._exit(0)
    os.close(is_ready)
    threading.Thread(target=serve, args=(connection, is_silent), daemon=True).start()
    os.read(ready, 1)
    is_silent.append(True)
    os.write(tell, b"x")
    print(target, flush=True)
    sys.stdin.read()
    libc.umount2(folder.encode(), MNT_DETACH)
    os.kill(target, signal.SIGKILL)
    os._exit(0)  # closes the connection: what waits for answers gets errors


if __name__ == "__main__":
    main()
