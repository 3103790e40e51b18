"""What the kernel side needs of a machine, one check each; each says what it found or raises UnsupportedError."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable

from bpfprof.errors import UnsupportedError
from bpfprof.kernel.attach import Attachments
from bpfprof.kernel.btf import KernelTypes
from bpfprof.kernel.compiler import check_bcc
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.kernel.tables import Tables

_FIRST_PID_NAMESPACE = 0xEFFFFFFC


def check_machine() -> str:
    """The frame walk knows x86-64 only."""
    if platform.machine() != "x86_64":
        raise UnsupportedError(f"bpfprof does not know {platform.machine()} yet; it needs x86-64")
    return f"Linux {os.uname().release} on x86-64"


def check_namespace() -> str:
    """Kernel and user space must mean the same by a pid."""
    # The first pid namespace has a fixed inode: PROC_PID_INIT_INO, include/linux/proc_ns.h.
    if os.stat("/proc/self/ns/pid").st_ino != _FIRST_PID_NAMESPACE:
        raise UnsupportedError(
            "bpfprof runs inside a pid namespace, where pids are not those the kernel sees",
            "run it on the host; the programs it watches may be in containers",
        )
    return "the host's"


def check_types() -> str:
    """Struct offsets."""
    return f"task_struct.pid at {KernelTypes().offset('task_struct', 'pid')}"


def check_maps() -> str:
    """The privilege to make BPF maps."""
    tables = Tables.create()
    count = len(tables.fds)
    tables.close()
    return f"{count} maps made"


def check_programs() -> str:
    """Compiling, loading and attaching."""
    attachments, kernel = Attachments(), KernelSide.start()
    try:
        programs = kernel.programs()
        attachments.attach_tracepoints(programs)
        attachments.attach_clock(programs, "cpu-clock", 99)
        return f"{len(programs)} programs loaded, {len(attachments.fds)} attached"
    finally:
        attachments.close()
        kernel.close()


CHECKS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("machine", check_machine),
    ("pid namespace", check_namespace),
    ("kernel types (BTF)", check_types),
    ("BCC", check_bcc),
    ("privilege", check_maps),
    ("BPF programs", check_programs),
)
