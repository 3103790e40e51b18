"""A process whose threads `reads`, which nothing interrupts, and `sleeps`, which can be frozen. half_frozen.py FOLDER.

As root: on the folder a FUSE file system was mounted whose server answers no more. Prints "ready PID" of the process
and ends it when standard input closes.
"""

import os
import signal
import sys
import threading
import time

import unanswered


def be_target(path, told):
    file = os.open(path, os.O_RDONLY)
    os.read(told, 1)
    threading.Thread(target=os.pread, args=(file, 10, 0), name="reads", daemon=True).start()
    threading.Thread(target=time.sleep, args=(1e6,), name="sleeps", daemon=True).start()
    while True:
        signal.pause()


def opened(pid):
    return [os.path.realpath(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]


def main():
    folder, connection = os.fsencode(sys.argv[1]), os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % connection
    if unanswered.libc.mount(b"unanswered", folder, b"fuse", unanswered.MS_NOSUID_NODEV, options):
        raise OSError("mount")
    told, tell = os.pipe()
    target = os.fork()
    if not target:
        os.close(connection)
        be_target(os.path.join(sys.argv[1], "file"), told)
    is_silent = []
    threading.Thread(target=unanswered.serve, args=(connection, is_silent), daemon=True).start()
    while not any(it.endswith("/file") for it in opened(target)):
        time.sleep(0.01)
    unanswered.libc.umount2(folder, unanswered.MNT_DETACH)  # the open file keeps it
    is_silent.append(True)
    os.write(tell, b"x")
    print("ready", target, flush=True)
    sys.stdin.read()
    os.kill(target, signal.SIGKILL)
    os._exit(0)  # closes the connection: who reads gets an error


if __name__ == "__main__":
    main()
