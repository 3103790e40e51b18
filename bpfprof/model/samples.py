"""What a recording holds in volume: samples, waits, stacks and the totals of threads, as numpy records.

Times are nanoseconds of CLOCK_MONOTONIC. `thread` and `stack` are indices into the recording's own tables; stack 0 is
"no stack", and `status` (index into the recording's status texts) then says why.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from bpfprof.model.syscalls import syscall_numbers

NO_STACK = 0


class FdKind(IntEnum):
    """What a system call's descriptor is, looked up soon after the wait; UNKNOWN: it was closed, or there is none."""

    UNKNOWN = 0
    FILE = 1
    PIPE = 2
    SOCKET = 3
    DEVICE = 4


# Numbers of the calls whose first argument is a descriptor that decides what they wait for.
FD_CALLS = sorted(
    syscall_numbers(
        *("read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2"),
        *("ioctl", "fcntl", "sendfile", "splice", "flock", "getdents64", "ftruncate", "fallocate"),
    )
)

# A thread seen on a CPU. on_cpu_ns: CPU time of the thread since it is watched, up to the sample.
SAMPLE_DTYPE = np.dtype(
    [("time_ns", "<u8"), ("on_cpu_ns", "<u8"), ("thread", "<u4"), ("stack", "<u4"), ("cpu", "<u2"), ("status", "u1")]
)

# A thread's way from leaving a CPU to being back on one, at time_ns: blocked_ns until it was made runnable, then
# runqueue_ns until it ran. on_cpu_ns: as in a sample, when it left; stolen_ns: what was taken from it by the hypervisor
# or interrupts while it was on the CPU before. task_state 0: it was runnable all the time. syscall -1: in none.
# fd_kind: FdKind of the call's descriptor.
WAIT_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),
        ("on_cpu_ns", "<u8"),
        ("blocked_ns", "<u8"),
        ("runqueue_ns", "<u8"),
        ("stolen_ns", "<u8"),
        ("args", "<u8", (3,)),
        ("thread", "<u4"),
        ("stack", "<u4"),
        ("syscall", "<i2"),
        ("task_state", "<u2"),
        ("status", "u1"),
        ("fd_kind", "u1"),
    ]
)

# State of a thread when it was last looked at: totals of all that ended before since_ns, and what it does since.
# state: enum bp_thread_state of ebpf/abi.h. running_ns: how long it ran since since_ns, if it is on a CPU. The other
# fields are as in WAIT_DTYPE, for a wait that has not ended.
TOTAL_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),
        ("first_ns", "<u8"),
        ("since_ns", "<u8"),
        ("wake_ns", "<u8"),
        ("on_cpu_ns", "<u8"),
        ("blocked_ns", "<u8"),
        ("runqueue_ns", "<u8"),
        ("stolen_ns", "<u8"),
        ("running_ns", "<u8"),
        ("args", "<u8", (3,)),
        ("thread", "<u4"),
        ("stack", "<u4"),
        ("wait_count", "<u4"),
        ("syscall", "<i2"),
        ("task_state", "<u2"),
        ("state", "u1"),
        ("status", "u1"),
        ("fd_kind", "u1"),
    ]
)

# One Python frame of a stack, leaf first. code: index of the code object in the recording; offset: of the current code
# unit, in bytes from the first, -2 or less when not started; mark: entry mark as CPython keeps it (see cpython.layout).
PYTHON_FRAME_DTYPE = np.dtype([("code", "<u4"), ("offset", "<i4"), ("mark", "u1")])

# One stack: its frames are the next python_count of the python frames, native_count of the native, ... of the chunk.
STACK_DTYPE = np.dtype(
    [
        ("process", "<u4"),
        ("python_count", "<u2"),
        ("native_count", "<u2"),
        ("kernel_count", "<u2"),
        ("status", "u1"),
    ]
)
