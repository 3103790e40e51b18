"""What bpfprof and its reader keep of their privileges once a recording has begun, and how the others are given up.

Each that stays has its reason here.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Iterable

from bpfprof.model.seccomp import COMPUTING, seccomp_filter
from bpfprof.proc.privilege import KERNEL_NAMES, MAPPED_FILES, OTHER_USERS, REQUIRED, UPROBES, Capability

# What reader_child.py reads with; also one that is started later, in place of one that was left behind.
READING = (*OTHER_USERS, *MAPPED_FILES)
# proc_pid_stack(), fs/proc/base.c, asks for it.
KERNEL_STACKS = (Capability("CAP_SYS_ADMIN", 21, "the kernel's functions in which a thread sleeps, for a dump"),)
RECORDING = (
    *(each for each in REQUIRED if each.name == "CAP_BPF"),  # memory of unwind tables is made as it is needed
    *KERNEL_NAMES,  # they are looked up as they are met
    Capability("CAP_SYS_NICE", 23, "a table that a stack needs is made before other programs run"),
    *READING,
)
OTHER_IDS = (
    Capability("CAP_SETUID", 7, "files are opened as the user who called sudo, debug information as nobody"),
    Capability("CAP_SETGID", 6, "the same with that user's groups"),
)
ANY_FOLDER = (Capability("CAP_DAC_OVERRIDE", 1, "files that are made by keys, in a folder that is not root's"),)
PROBES = REQUIRED  # of libraries that are mapped later
PERF_PROBES = (*REQUIRED, *UPROBES)  # the same where each is a perf event
SIGNALS = (Capability("CAP_KILL", 5, "a command that runs as another user gets signals, and is ended"),)

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 24, 38, 47, 2  # linux/prctl.h
_VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3, include/uapi/linux/capability.h
_HIGHEST = 63
_READER_CALLS = (
    "recvmsg sendmsg read readv preadv preadv2 close fcntl fstat stat newfstatat statx fstatfs openat2 process_vm_readv"
)


def keep_only(kept: Iterable[Capability]) -> None:
    """Of this thread's capabilities, for good, and nothing that it runs gets more. Threads that it starts are like it.

    What it lacks already stays so.
    """
    libc = ctypes.CDLL(None)
    header, held = struct.pack("Ii", _VERSION_3, 0), ctypes.create_string_buffer(24)
    libc.capget(header, held)
    _, low, _, _, high, _ = struct.unpack("6I", held)
    own = (high << 32 | low) & bits(kept)
    for number in range(_HIGHEST + 1):
        if not own >> number & 1:
            libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0)
    # A program that an ordinary user runs gets those that are ambient: see execve in capabilities(7).
    passed_on = own & bits((*READING, *KERNEL_STACKS)) if os.geteuid() else 0
    halves = [word for shift in (0, 32) for word in (own >> shift, own >> shift, passed_on >> shift)]
    if libc.capset(header, struct.pack("6I", *(word & 0xFFFFFFFF for word in halves))) != 0:
        raise OSError("capabilities that are not needed any more cannot be given up")
    for number in range(_HIGHEST + 1):
        if passed_on >> number & 1:
            libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, ctypes.c_ulong(number), 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def bits(capabilities: Iterable[Capability]) -> int:
    """As the kernel has them, a bit each."""
    return sum(1 << each.number for each in set(capabilities))


@functools.cache
def reader_filter() -> bytes:
    """Leaves reader_child.py what reads."""
    return seccomp_filter(f"{COMPUTING} {_READER_CALLS}")
