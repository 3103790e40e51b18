"""The process that `decoder` starts: open ELF files in, their rows and rules out, as the cache keeps them.

    python -I -S decoder_child.py SOCKET NICE FOLDER...

FOLDERs are where numpy and bpfprof are. A message on the socket brings two descriptors: a file, and an empty one for
what is found. The answer is a dot and what went wrong, if anything did. The process ends when no more comes. The files
are strangers' and bpfprof may be root, so it gives up its rights before it reads one; it has limits of time and memory.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys

ERROR_BYTES = 200
_CALLS = "recvmsg sendto poll read write lseek pread64 close fcntl ioctl fstat newfstatat statx getdents64"
_IDLE_S = 1.0
_LIMITS = {
    resource.RLIMIT_DATA: 1 << 30,  # bytes; libtorch_cpu takes 0.2 GB
    resource.RLIMIT_CPU: 60,  # seconds; the decoder has bounds of its own, of some 10 for each file
    resource.RLIMIT_FSIZE: 64 << 20,  # of an answer
    resource.RLIMIT_NOFILE: 64,  # numpy has modules that it imports when they are needed
}


def main() -> None:
    os.setsid()  # the terminal's signals do not reach it; not sooner, when bpfprof waits until it runs
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, int(sys.argv[2]))
    # Where sched(7)'s autogroups are on, a nice value counts only within a session, and this is one of its own.
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(sys.argv[2])
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write("bpfprof-tables")
    connection = socket.socket(fileno=int(sys.argv[1]))
    sys.path += sys.argv[3:]
    import numpy.ma  # noqa: F401  # of which np.unique() asks: later it may be unreadable

    from bpfprof.elf.cfi import tables  # noqa: F401
    from bpfprof.elf.image import ElfError, ElfImage
    from bpfprof.elf.lines_child import confine
    from bpfprof.model.seccomp import COMPUTING, seccomp_filter
    from bpfprof.proc.confinement import OTHER_IDS, keep_only
    from bpfprof.unwind.cache import decode_rows, pack

    connection.settimeout(_IDLE_S)
    keep_only(OTHER_IDS)
    confine(_LIMITS, seccomp_filter(f"{COMPUTING} {_CALLS}"))
    while True:
        try:
            message, fds, _, _ = socket.recv_fds(connection, 1, 2)
        except socket.timeout:
            return
        if not message:
            return
        problem = ""
        with os.fdopen(fds[1], "wb") as output:
            try:
                with ElfImage(fds[0]) as image:
                    output.write(pack(*decode_rows(image)))
            except Exception as error:
                kind = "" if isinstance(error, ElfError) else f"internal error: {type(error).__name__}: "
                problem = f"{kind}{error}"
        connection.send(b"." + problem.encode(errors="replace")[:ERROR_BYTES])


if __name__ == "__main__":
    main()
