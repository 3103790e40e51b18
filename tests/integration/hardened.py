"""Hosts that forbid something: command prefixes and contexts that make each condition for one run of bpfprof."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from bpfprof.model.syscalls import syscall_name, syscall_numbers
from bpfprof.proc.privilege import CAPABILITIES
from tests.integration.recorded import NOBODY

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2  # include/uapi/linux/prctl.h, seccomp.h
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD | BPF_W | BPF_ABS and so on, include/uapi/linux/filter.h
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000  # SECCOMP_RET_*
_CALLS = 512  # more than there are


def denying(number: int, *calls: str) -> Callable[[], None]:
    """For subprocess's preexec_fn: a seccomp filter that answers these system calls with an errno."""
    return _filter(sorted(syscall_numbers(*calls)), _ERROR | number, _ALLOW)


def allowing(calls: Collection[str]) -> Callable[[], None]:
    """For subprocess's preexec_fn: a seccomp filter that answers all other system calls with EPERM."""
    return _filter([number for number in range(_CALLS) if syscall_name(number) in calls], _ALLOW, _ERROR | errno.EPERM)


def _filter(numbers: list[int], answer: int, others: int) -> Callable[[], None]:
    lines = [struct.pack("HBBI", _LOAD, 0, 0, 0)]  # seccomp_data.nr
    for call in numbers:
        lines += [struct.pack("HBBI", _JUMP_EQUAL, 0, 1, call), struct.pack("HBBI", _RETURN, 0, 0, answer)]
    lines.append(struct.pack("HBBI", _RETURN, 0, 0, others))
    code = ctypes.create_string_buffer(b"".join(lines))
    program = ctypes.create_string_buffer(struct.pack("H6xQ", len(lines), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)

    def install() -> None:
        assert code, "the filter is read when it is installed"
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, program, 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp")

    return install


def with_capabilities(names: Sequence[str], uid: int) -> list[str]:
    """A prefix: only these capabilities, for ever; of a user who is not root they are ambient."""
    # By number: setpriv of Debian 11 does not know the newer ones by name.
    wanted = ",".join(["-all", *(f"+cap_{each.number}" for each in CAPABILITIES if each.name in names)])
    prefix = ["setpriv", "--no-new-privs", f"--bounding-set={wanted}"]
    if uid == 0:
        return [*prefix, "--inh-caps=-all"]
    return [*prefix, *as_user(uid)[1:], f"--inh-caps={wanted}", f"--ambient-caps={wanted}"]


def as_user(uid: int = NOBODY) -> list[str]:
    """A prefix: an ordinary user."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def after(script: str, *namespaces: str) -> list[str]:
    """A prefix: new namespaces (options of unshare), in which a shell script has run."""
    return ["unshare", "--mount", *namespaces, "sh", "-c", f'set -e; {script}\nexec "$@"', "sh"]


@contextmanager
def kernel_setting(name: str, value: str) -> Iterator[None]:
    """A sysctl as it has to be, and as it was again."""
    path = Path("/proc/sys", *name.split("."))
    if not path.exists():
        pytest.skip(f"this kernel has no {name}")
    before = path.read_text().strip()
    try:
        path.write_text(value)
    except OSError as error:
        pytest.skip(f"{name} stays {before}: {os.strerror(error.errno or 0)}")
    try:
        yield
    finally:
        path.write_text(before)
