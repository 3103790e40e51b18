"""Names of system calls -> a seccomp filter, a program of struct sock_filter that leaves a process these alone.

Layouts: include/uapi/linux/seccomp.h, filter.h and audit.h. x86-64, as model/syscalls.py.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Iterator

from bpfprof.model.syscalls import syscall_numbers

_LOAD, _JUMP_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # BPF_LD | BPF_W | BPF_ABS and so on
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM  # SECCOMP_RET_*
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # struct seccomp_data
_X86_64 = 0xC000003E  # AUDIT_ARCH_X86_64
# What a process needs that only computes.
COMPUTING = (
    "brk munmap mremap madvise futex rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall "
    "getpid gettid clock_gettime getrusage getrandom sched_yield exit exit_group"
)
# Call -> (number of an argument, bits of it that are refused); nothing is written to a file that is opened.
_READING_ONLY = {
    "openat": (2, os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC),
    "mmap": (3, mmap.MAP_SHARED),  # memory that is a file's
}


def seccomp_filter(calls: str) -> bytes:
    """Others are answered with EPERM, and so are those of _READING_ONLY that have such bits.

    b"" on another machine than x86-64.
    """
    if os.uname().machine != "x86_64" or struct.calcsize("P") != 8:
        return b""
    program = [_line(_LOAD, _ARCHITECTURE_AT), _line(_JUMP_EQUAL, _X86_64, 1), _line(_RETURN, _REFUSE)]
    program.append(_line(_LOAD, _NUMBER_AT))
    for number in sorted(syscall_numbers(*calls.split())):
        program += [_line(_JUMP_EQUAL, number, 0, 1), _line(_RETURN, _ALLOW)]
    for name, (argument, bits) in _READING_ONLY.items():
        program += _without(name, argument, bits)
    return b"".join([*program, _line(_RETURN, _REFUSE)])


def _without(name: str, argument: int, bits: int) -> Iterator[bytes]:
    (number,) = syscall_numbers(name)
    yield _line(_JUMP_EQUAL, number, 0, 4)
    yield _line(_LOAD, _ARGUMENTS_AT + 8 * argument)  # its lower half
    yield _line(_JUMP_ANY_BIT, bits, 1)
    yield _line(_RETURN, _ALLOW)
    yield _line(_RETURN, _REFUSE)


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
