"""The user who called sudo, by the variables that sudo sets: ids for files, and what a program of that user has."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
from collections.abc import Iterator, Sequence

from bpfprof.model.ids import Pid
from bpfprof.model.syscalls import syscall_numbers
from bpfprof.proc.reader import reader
from bpfprof.proc.tasks import process_name

_NO_ID = (1 << 32) - 1  # (uid_t)-1, which setresuid(2) takes as "leave it"
_ENVIRONMENT_LIMIT_BYTES = 4 << 20
# sudoers(5): what the new environment has whatever the old one had. PATH: secure_path; TERM: "unknown" without one.
_SET_BY_SUDO = ("HOME", "LOGNAME", "MAIL", "PATH", "SHELL", "TERM", "USER", "USERNAME")


def caller_ids() -> tuple[int, int] | None:
    """(uid, gid) of the user who called sudo, None when this is not run by root through sudo."""
    uid, gid = (_id(os.environ.get(name, "")) for name in ("SUDO_UID", "SUDO_GID"))
    return None if os.geteuid() != 0 or uid is None or gid is None else (uid, gid)


def caller_groups(uid: int, gid: int) -> list[int]:
    """All groups of the user, `gid` among them."""
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:  # an id without a name
        return [gid]


@contextlib.contextmanager
def files_as(caller: tuple[int, int] | None) -> Iterator[None]:
    """Within the block this thread opens, makes and removes files as that user may, and they are that user's.

    None: as bpfprof does. The ids for file systems (setfsuid(2)) are a thread's own; without root's the kernel takes
    the capabilities away that go past permissions (capabilities(7), "Effect of user ID changes").
    """
    if caller is None:
        yield
        return
    before = os.geteuid(), os.getegid(), os.getgroups()
    _set_file_ids(*caller, caller_groups(*caller))
    try:
        yield
    finally:
        _set_file_ids(*before)


def _set_file_ids(uid: int, gid: int, groups: Sequence[int]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # glibc's setgroups() sets those of all threads.
    (set_groups,) = syscall_numbers("setgroups")
    if libc.syscall(set_groups, len(groups), (ctypes.c_uint32 * len(groups))(*groups)) != 0:
        raise OSError(ctypes.get_errno(), "the caller's groups cannot be taken")
    for setter, wanted in ((libc.setfsgid, gid), (libc.setfsuid, uid)):
        setter(ctypes.c_uint32(wanted))
        # It returns what was before, not whether it could; -1 changes nothing.
        if setter(ctypes.c_uint32(_NO_ID)) & _NO_ID != wanted:
            raise PermissionError(1, "the caller's ids cannot be taken")


def own_environment() -> dict[str, str]:
    """What this process was started with; Python itself adds to it (PEP 538)."""
    return _environment_of(Pid(os.getpid())) or dict(os.environ)


def caller_environment(uid: int) -> dict[str, str]:
    """What a program of this user has, who called sudo.

    It is the environment that sudo was called with, and what was added since (`sudo NAME=VALUE bpfprof`). Where sudo
    has started something else, like a shell: bpfprof's own, with the user's names and home for root's.
    """
    own = {name: value for name, value in own_environment().items() if not name.startswith("SUDO_")}
    parent = Pid(os.getppid())
    given = _environment_of(parent) if process_name(parent) == "sudo" else {}
    if given:
        return {**given, **{name: value for name, value in own.items() if name not in _SET_BY_SUDO}}
    for name in ("MAIL", "USERNAME"):
        own.pop(name, None)
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return own
    return {**own, "HOME": entry.pw_dir, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell, "USER": entry.pw_name}


def _environment_of(pid: Pid) -> dict[str, str]:
    """What a process was started with; empty when that cannot be read."""
    try:
        content = reader().read_file(pid, f"/proc/{pid}/environ", _ENVIRONMENT_LIMIT_BYTES)
        pairs = [pair.partition(b"=") for pair in content.split(b"\0")]
    except OSError:
        return {}
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if name and equals}


def _id(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_NO_ID))
    return int(text) if is_number and int(text) < _NO_ID else None
