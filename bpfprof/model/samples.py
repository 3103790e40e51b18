"""What a recording holds in volume: samples, waits, stacks and the totals of threads, as numpy records.

Times are nanoseconds of CLOCK_MONOTONIC. `thread` and `stack` are indices into the recording's own tables; stack 0 is
"no stack", and `status` (index into the recording's status texts) then says why.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np

from bpfprof.model.syscalls import syscall_numbers


class FdKind(IntEnum):
    """What a system call's descriptor is, looked up soon after the wait; UNKNOWN: it was closed, or there is none."""

    UNKNOWN = 0
    FILE = 1
    PIPE = 2
    SOCKET = 3
    DEVICE = 4
    EVENT = 5  # of the kernel: eventfd, signalfd, inotify
    PROCESS = 6  # pidfd


# Numbers of the calls whose first argument is a descriptor that decides what they wait for.
FD_CALLS = sorted(
    syscall_numbers(
        *("read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2"),
        *("ioctl", "fcntl", "sendfile", "splice", "flock", "getdents64", "ftruncate", "fallocate"),
    )
)


# Names of those that wait for a socket, which their first argument is.
SOCKET_CALLS = ("connect", "accept", "accept4", "sendto", "recvfrom", "sendmsg", "recvmsg", "recvmmsg", "sendmmsg")


# Bits of the arguments of waits that say what is in the others: of a futex's second one, that the first is the lock
# behind it; of an fcntl's third one, that its lower bits are where in the file the range begins.
PARKED_BIT, RANGE_BIT = 62, 63


class ThreadFlag(IntFlag):
    """`flags` of samples, waits and totals."""

    HOLDS_GIL = 1  # of its interpreter
    WAITS_FOR_GIL = 2  # the wait is one for a GIL
    UNSAMPLED = 4  # of short waits: not short; there were more switches than were asked for


HOLDS_GIL, WAITS_FOR_GIL, UNSAMPLED = (int(flag) for flag in ThreadFlag)

# A thread seen on a CPU. on_cpu_ns: CPU time of the thread since it is watched, up to the sample.
SAMPLE_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),
        ("on_cpu_ns", "<u8"),
        ("thread", "<u4"),
        ("stack", "<u4"),
        ("cpu", "<u2"),
        ("status", "u1"),
        ("flags", "u1"),
    ]
)

# A sample of an event that is counted beside the clock, like page faults. event: its place in `events` of the start;
# count: for how many it speaks. Of no time: what a thread did is in the tables of samples and waits.
EVENT_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),
        ("count", "<u8"),
        ("thread", "<u4"),
        ("stack", "<u4"),
        ("event", "u1"),
        ("status", "u1"),
        ("flags", "u1"),
    ]
)


class WakerKind(IntEnum):
    """What made a thread runnable; UNKNOWN: a short wait, or one that was runnable all the time."""

    UNKNOWN = 0
    THREAD = 1
    INTERRUPT = 2  # a timer, where the wait was one that timers end
    SOFT_INTERRUPT = 3  # one that was put off: the network's, mostly


# A thread's way from leaving a CPU to being back on one, at time_ns: blocked_ns until it was made runnable, then
# runqueue_ns until it ran. on_cpu_ns: as in a sample, when it left; stolen_ns: what was taken from it by the hypervisor
# or interrupts while it was on the CPU before. task_state 0: it was runnable all the time. syscall -1: in none.
# fd_kind: FdKind of the call's descriptor. waker: who ended it, a place in the table of wakers from 1 on, 0: not known;
# waker_kind: WakerKind; waker_stack: where that thread was, 0: not taken. holder: of a wait for a GIL, the thread that
# held it when the wait began, index + 1, 0: not known; holder_stack: its Python frames then. object: what the
# call's descriptor is of, or what a futex in shared memory is in, a place in the table of objects from 1 on, 0: none,
# or not known.
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
        ("waker", "<u4"),
        ("waker_stack", "<u4"),
        ("holder", "<u4"),
        ("holder_stack", "<u4"),
        ("object", "<u4"),
        ("syscall", "<i2"),
        ("task_state", "<u2"),
        ("one_in", "<u2"),
        ("status", "u1"),
        ("fd_kind", "u1"),
        ("flags", "u1"),
        ("waker_kind", "u1"),
    ]
)

# Waits of one thread that have no row of their own: shorter than --min-block, or (UNSAMPLED in flags) more than were
# asked for and under 10 ms. Added up by what they waited in; rows of one thread and kind add up. syscall,
# task_state, fd_kind, flags: as in a wait; arg: the call's first argument where it is a small number, else 0.
SHORT_DTYPE = np.dtype(
    [
        ("blocked_ns", "<u8"),
        ("runqueue_ns", "<u8"),
        ("arg", "<u8"),
        ("thread", "<u4"),
        ("count", "<u4"),
        ("syscall", "<i2"),
        ("task_state", "<u2"),
        ("fd_kind", "u1"),
        ("flags", "u1"),
    ]
)

# State of a thread when it was last looked at: totals of all that ended before since_ns, and what it does since.
# state: LastState. running_ns: how long it ran since since_ns, if it is on a CPU. Others: as in WAIT_DTYPE, for a wait
# that has not ended.
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
        ("holder", "<u4"),
        ("holder_stack", "<u4"),
        ("object", "<u4"),
        ("syscall", "<i2"),
        ("task_state", "<u2"),
        ("state", "u1"),
        ("status", "u1"),
        ("fd_kind", "u1"),
        ("flags", "u1"),
    ]
)

# Who held what a thread waited for, read in the process between time_ns and end_ns. holder: index of that thread + 1;
# has_end: 1 where it waits for a time at most.
LOCK_HOLDER_DTYPE = np.dtype(
    [("time_ns", "<u8"), ("end_ns", "<u8"), ("thread", "<u4"), ("holder", "<u4"), ("has_end", "u1")]
)

# One Python frame of a stack, leaf first. code: index of the code object in the recording; offset: of the current code
# unit, in bytes from the first, -2 or less when not started; mark: entry mark as CPython keeps it (see cpython.layout).
PYTHON_FRAME_DTYPE = np.dtype([("code", "<u4"), ("offset", "<i4"), ("mark", "u1")])

# One native or kernel frame, the same for all stacks that have it. address: as written in the file (see the table of
# files); of a kernel frame its distance from a secret (see code.addresses); in memory without a file, or in no known
# mapping, as in the process.
NATIVE_DTYPE = np.dtype([("address", "<u8"), ("file", "<u4"), ("flags", "u1")])
NATIVE_EXACT = 1  # the address is of an instruction that ran, not of one that will be returned to
NO_FILE = 0xFFFFFFFF
MEMORY = "[memory]"  # path of memory in which code was made at run time
TRAMPOLINES = "[trampolines]"  # path of the memory in which CPython keeps code for perf, one for each function

# A native or kernel frame of a stack: the place of its row of natives, from 1 on.
NATIVE_INDEX_DTYPE = np.dtype([("native", "<u4")])

# What a native frame is called: one row, or several where functions were inlined, innermost first. native: its place
# among all rows of natives, from 1 on; function, file: places in the texts of the chunk; line: 0 when not known;
# since_ns: from when on other code was at the address, which has this name, 0: the first name.
NAME_DTYPE = np.dtype(
    [("native", "<u4"), ("function", "<u4"), ("file", "<u4"), ("line", "<u4"), ("flags", "u1"), ("since_ns", "<u8")]
)
NAME_INLINED = 1  # into the function of the next row
NAME_EVAL = 2  # the address is in CPython's evaluation function

# One stack: its frames are the next python_count of the Python frames, and the next native_count and then kernel_count
# of the native frames. status is of the Python frames, native_status of the native ones; native_flags: NativeFlag.
STACK_DTYPE = np.dtype(
    [
        ("process", "<u4"),
        ("python_count", "<u2"),
        ("native_count", "<u2"),
        ("kernel_count", "<u2"),
        ("status", "u1"),
        ("native_status", "u1"),
        ("native_flags", "u1"),
    ]
)

# What a program says of itself (bpfprof/marks.py): this thread did it from time_ns on, for `value` nanoseconds. name: a
# place in the texts of the chunk.
MARK_DTYPE = np.dtype([("time_ns", "<u8"), ("thread", "<u4"), ("name", "<u4"), ("value", "<f8")])


# Calls of a function of a library that ended, by one thread, since its last row. function: a place in the texts of the
# chunk. time_ns: when they were read. lengths: how many there were of each length, see model.calls.length_at.
# direction: a place in model.calls.DIRECTIONS. flags: model.calls.CallFlag.
CALL_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),
        ("count", "<u8"),
        ("total_ns", "<u8"),
        ("max_ns", "<u8"),
        ("bytes", "<u8"),
        ("thread", "<u4"),
        ("function", "<u4"),
        ("lengths", "<u4", (64,)),
        ("direction", "u1"),
        ("flags", "u1"),
    ]
)


class TaskState(IntEnum):
    """What an asyncio task was doing when it was looked at."""

    SUSPENDED = 0  # it waits for something
    READY = 1  # it could go on, or begin, as soon as its event loop gets to it
    RUNNING = 2


# An asyncio task as it was seen `count` times one after the other, from begin_ns to end_ns; seen_ns: what these looks
# speak for. task: place in the table of tasks. stack: its coroutines. waits_for: the type of what it waits for, and
# callback: the function that is called when that is done; places in the texts of the chunk. awaited_by: a task that
# waits for it, place + 1, 0: none; awaited_by_count: how many do. state: TaskState.
TASK_WAIT_DTYPE = np.dtype(
    [
        ("begin_ns", "<u8"),
        ("end_ns", "<u8"),
        ("seen_ns", "<u8"),
        ("task", "<u4"),
        ("stack", "<u4"),
        ("waits_for", "<u4"),
        ("callback", "<u4"),
        ("awaited_by", "<u4"),
        ("awaited_by_count", "<u4"),
        ("count", "<u4"),
        ("state", "u1"),
    ]
)
