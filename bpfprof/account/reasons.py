"""Rows of waits -> why each thread waited: by its system call, arguments and state, and the kernel frames."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.columns import Columns
from bpfprof.model.samples import WAIT_DTYPE, WAITS_FOR_GIL, FdKind
from bpfprof.model.states import SYSCALL_REASONS, reason_number
from bpfprof.model.syscalls import syscall_numbers

Bools = npt.NDArray[np.bool_]

_UNINTERRUPTIBLE = 2  # TASK_UNINTERRUPTIBLE, include/linux/sched.h
_NO_LOAD = 0x400  # TASK_NOLOAD; with the one above TASK_IDLE: no work, not a disk
_STOPPED = 4 | 8  # __TASK_STOPPED, __TASK_TRACED: by a signal or a debugger
NO_HINT = 0xFFFF

# These only sleep where another thread of the process holds the lock of its memory map, or for what is read of a file
# (MAP_POPULATE): kernel frames tell that.
_OF_MEMORY_MAP = "mmap munmap mprotect mremap brk madvise mlock mlock2 munlock pkey_mprotect"
_FUTEX = "futex futex_waitv futex_wait"
# The word for a call, whatever its arguments. What is not here is named by its descriptor, else by kernel frames, else
# as "disk" in a sleep that no signal ends, else by its own name. flock waits for who has the file locked, and semop for
# a semaphore between processes. A wait that SIGSTOP cut in two goes on as restart_syscall, which does not say what the
# call was before; most are sleeps. libaio does direct input and output of files only. Queues of messages are pipes that
# keep the borders of what was written. The parent of a vfork() waits until the child has called execve(): clone() with
# CLONE_VFORK is how libc does it.
_CALLS = {
    "lock": f"{_FUTEX} semop semtimedop",
    "file-lock": "flock",
    "kernel-lock": _OF_MEMORY_MAP,
    "sleep": "nanosleep clock_nanosleep pause rt_sigtimedwait rt_sigsuspend restart_syscall",
    "disk": "fsync fdatasync sync syncfs sync_file_range msync readahead io_getevents io_pgetevents",
    "net": "connect accept accept4 sendto recvfrom sendmsg recvmsg recvmmsg sendmmsg",
    "pipe": "msgsnd msgrcv mq_timedsend mq_timedreceive tee vmsplice",
    "poll": "select pselect6 poll ppoll epoll_wait epoll_pwait epoll_pwait2",
    "child": "wait4 waitid vfork clone clone3",
}
# Their sleeps that no signal ends are for something else than a disk: other threads that end, RCU, a driver. They keep
# their name, as all calls do that can wait for anything: io_uring_enter (what was submitted, of every kind), read of an
# inotify, eventfd, timerfd or signalfd without kernel frames, getrandom (the kernel's own entropy), open of a FIFO.
_NEVER_DISK = (
    "exit exit_group ioctl io_uring_enter getrandom membarrier bpf perf_event_open setns unshare ptrace "
    "sched_setaffinity set_mempolicy mbind migrate_pages kill tgkill seccomp"
)
_REASON_OF_DESCRIPTOR = {
    FdKind.FILE: "disk",
    FdKind.PIPE: "pipe",
    FdKind.SOCKET: "net",
    FdKind.DEVICE: "device",
    FdKind.EVENT: "poll",
}
FUTEX_PRIVATE = 128  # FUTEX_PRIVATE_FLAG, include/uapi/linux/futex.h
FUTEX_CALLS = sorted(syscall_numbers(*_FUTEX.split()))
_FCNTL = next(iter(syscall_numbers("fcntl")))
_LOCKS_FILE = (7, 38)  # F_SETLKW, F_OFD_SETLKW: include/uapi/asm-generic/fcntl.h


def _reason_table() -> npt.NDArray[np.uint16]:
    table = np.arange(1 << 15, dtype=np.uint16) + np.uint16(SYSCALL_REASONS)
    for reason, names in _CALLS.items():
        table[list(syscall_numbers(*names.split()))] = reason_number(reason)
    return table


def _calls_table(names: str) -> Bools:
    table = np.zeros(1 << 15, np.bool_)
    table[list(syscall_numbers(*names.split()))] = True
    return table


_REASON_OF_CALL = _reason_table()
_IS_FUTEX, _IS_SELECT = _calls_table(_FUTEX), _calls_table("select pselect6")
_IS_POLL, _IS_NEVER_DISK = _calls_table("poll ppoll"), _calls_table(_NEVER_DISK)
_IS_OF_MEMORY_MAP = _calls_table(_OF_MEMORY_MAP)


def wait_reasons(
    rows: Columns | npt.NDArray[np.void],
    gil_start: npt.NDArray[np.uint64],
    gil_end: npt.NDArray[np.uint64],
    is_kernel_thread: bool | Bools = False,
    hints: npt.NDArray[np.uint16] | None = None,
) -> npt.NDArray[np.uint16]:
    """A reason for each row of WAIT_DTYPE (syscall, task_state, args, fd_kind and flags); see model.states.

    gil_start and gil_end: where the GIL of each row's process lies, both 0 where it has none. hints: what the kernel
    frames of each row's wait tell (see kernel_reasons), NO_HINT: nothing.
    """
    in_call = rows["syscall"] >= 0
    calls = np.where(in_call, rows["syscall"], 0)
    first, second = rows["args"][:, 0], rows["args"][:, 1]
    reasons = _REASON_OF_CALL[calls]
    # Waiting for no descriptor is sleeping: time.sleep() before CPython 3.11 is a select() of nothing.
    waits_for_none = (_IS_SELECT[calls] & (first == 0)) | (_IS_POLL[calls] & (second == 0))
    reasons[waits_for_none] = reason_number("sleep")
    reasons[(calls == _FCNTL) & np.isin(second, _LOCKS_FILE)] = reason_number("file-lock")
    for kind, reason in _REASON_OF_DESCRIPTOR.items():
        reasons[(reasons >= SYSCALL_REASONS) & (rows["fd_kind"] == kind)] = reason_number(reason)
    # The one descriptor that is waited for is a device's, or a process.
    is_poll = reasons == reason_number("poll")
    reasons[is_poll & (rows["fd_kind"] == FdKind.DEVICE)] = reason_number("device")
    reasons[is_poll & (rows["fd_kind"] == FdKind.PROCESS)] = reason_number("child")
    is_deep = (rows["task_state"] & (_UNINTERRUPTIBLE | _NO_LOAD)) == _UNINTERRUPTIBLE
    of_kernel = np.broadcast_to(is_kernel_thread, len(rows))
    # A page fault does not sleep interruptibly.
    of_program = np.where(is_deep, reason_number("pagefault"), reason_number("unknown"))
    reasons[~in_call] = np.where(of_kernel, reason_number("sleep"), of_program)[~in_call]
    if hints is not None:
        listens = ~in_call | (reasons >= SYSCALL_REASONS) | _IS_OF_MEMORY_MAP[calls]
        # A write of a file may wait for another one of it, not for the disk.
        listens |= is_deep & in_call & ~_IS_FUTEX[calls] & (hints == reason_number("kernel-lock"))
        told = listens & (hints != NO_HINT)
        reasons[told] = hints[told]
    reasons[(reasons >= SYSCALL_REASONS) & is_deep & ~_IS_NEVER_DISK[calls] & in_call] = reason_number("disk")
    in_gil = _IS_FUTEX[calls] & (first >= gil_start) & (first < gil_end)
    reasons[in_gil | (rows["flags"] & WAITS_FOR_GIL > 0)] = reason_number("gil")
    reasons[rows["task_state"] & _STOPPED != 0] = reason_number("stopped")
    return reasons


def by_any_means(reasons: npt.NDArray[np.uint16]) -> Bools:
    """Whether each is a way to wait for anything, of which who does it knows more than the kernel."""
    ways = [reason_number(word) for word in ("lock", "sleep", "poll", "pipe", "unknown")]
    found: Bools = np.isin(reasons, ways) | (reasons >= SYSCALL_REASONS)
    return found


def as_waits(short_waits: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Rows of SHORT_DTYPE as rows of WAIT_DTYPE for wait_reasons(); arguments that are not known are large."""
    rows = np.zeros(len(short_waits), WAIT_DTYPE)
    for name in ("thread", "syscall", "task_state", "fd_kind", "flags"):
        rows[name] = short_waits[name]
    rows["args"] = ~np.uint64(0)
    rows["args"][:, 0] = short_waits["arg"]
    return rows
