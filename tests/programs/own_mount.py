"""A Python whose own file lies on a FUSE mount that only its user may read: `own_mount.py FOLDER PYTHON NAME`, as root.

As in an AppImage. With one more argument the mount is seen by it alone. Prints "ready PID" when it runs, and ends when
standard input closes.
"""

import ctypes
import os
import signal
import struct
import sys
import threading

UID, FILE = 4242, 2
# include/uapi/linux/fuse.h
LOOKUP, FORGET, GETATTR, OPEN, READ, INIT, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 15, 26, 36, 42
REQUEST, ANSWER = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
MS_NOSUID_NODEV, MS_PRIVATE_ALL, MNT_DETACH, PAGE, CLONE_NEWNS = 6, 0x44000, 2, 4096, 0x20000
SPINS = "import os\nprint('ready', os.getpid(), flush=True)\ndef spin():\n    while True: sum(range(1000))\nspin()"
libc = ctypes.CDLL(None, use_errno=True)


def attributes(inode, size):
    mode = 0o40755 if inode == 1 else 0o100755
    return struct.pack("<6Q10I", inode, 0 if inode == 1 else size, *[0] * 7, mode, 1, UID, UID, 0, PAGE, 0)


def answer(action, inode, request, content):
    """(errno, bytes); None: none is expected."""
    if action == INIT:
        return 0, struct.pack("<4I2H2I2H8I", 7, 31, PAGE, 0, 1, 1, PAGE, 0, 0, 0, *[0] * 8)
    if action == LOOKUP:
        return 0, struct.pack("<4Q2I", FILE, 0, 3600, 3600, 0, 0) + attributes(FILE, len(content))
    if action == GETATTR:
        return 0, struct.pack("<Q2I", 3600, 0, 0) + attributes(inode, len(content))
    if action == OPEN:
        return 0, struct.pack("<Q2I", 1, 0, 0)
    if action == READ:
        _, offset, size = struct.unpack_from("<QQI", request, REQUEST.size)
        return 0, content[offset : offset + size]
    return None if action in (FORGET, INTERRUPT, BATCH_FORGET) else (-38, b"")


def serve(connection, content):
    while True:
        try:
            request = os.read(connection, 1 << 17)
        except OSError:  # it is unmounted
            return
        _, action, unique, inode, *_ = REQUEST.unpack_from(request)
        found = answer(action, inode, request, content)
        if found is not None:
            os.write(connection, ANSWER.pack(ANSWER.size + len(found[1]), found[0], unique) + found[1])


def main():
    folder, python, name = sys.argv[1:4]
    with open(python, "rb") as file:
        content = file.read()
    if sys.argv[4:]:
        libc.unshare(CLONE_NEWNS)
        libc.mount(b"none", b"/", None, MS_PRIVATE_ALL, None)
    connection = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={connection},rootmode=40000,user_id={UID},group_id={UID}"
    if libc.mount(b"own_mount", folder.encode(), b"fuse.own", MS_NOSUID_NODEV, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    try:
        target = os.fork()
        if target == 0:
            os.setgroups([])
            os.setresgid(UID, UID, UID)
            os.setresuid(UID, UID, UID)
            os.chdir("/")
            try:
                os.execve(f"{folder}/{name}", [name, "-I", "-S", "-c", SPINS], {"PYTHONHOME": sys.base_prefix})
            finally:
                os._exit(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is printed is the target's
        threading.Thread(target=serve, args=(connection, content), daemon=True).start()
        sys.stdin.read()
        os.kill(target, signal.SIGKILL)
        os.waitpid(target, 0)
    finally:
        libc.umount2(folder.encode(), MNT_DETACH)


if __name__ == "__main__":
    main()
