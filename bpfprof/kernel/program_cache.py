"""Compiled programs kept between runs, for the compiler takes most of the time it takes to start.

The folder and its files belong to the user that runs and nobody else can write there: what is loaded into the kernel is
only ever what this user compiled. The name of a file is a hash of everything that went into the compiler.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from bpfprof import __version__

_MAX_BYTES = 1 << 22


def cache_directory() -> Path:
    """Where it lies: /var/cache for root, whose HOME may be another user's under sudo, else the user's own cache."""
    if os.geteuid() == 0:
        return Path("/var/cache/bpfprof")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bpfprof"


def cache_key(text: str, flags: list[str]) -> str:
    """Name for what the compiler makes of this text with these flags on this kernel."""
    parts = [__version__, os.uname().release, os.uname().machine, *flags, text]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load(key: str) -> dict[str, bytes] | None:
    """The programs kept under this key; None when there are none, or they are not ours or not whole."""
    try:
        with _open_directory(create=False) as directory:
            fd = os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            with os.fdopen(fd, "rb") as file:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode) or not _is_ours(status) or status.st_size > _MAX_BYTES:
                    return None
                checksum, _, content = file.read(_MAX_BYTES).partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != checksum:
            return None
        return {name: bytes.fromhex(code) for name, code in json.loads(content).items()}
    except (OSError, ValueError, AttributeError):
        return None


def store(key: str, programs: dict[str, bytes]) -> None:
    """Keeps programs; where that is not possible they are compiled again next time."""
    content = json.dumps({name: code.hex() for name, code in programs.items()}).encode()
    temporary = f"{key}.{os.getpid()}"
    with contextlib.suppress(OSError), _open_directory(create=True) as directory:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=directory), "wb") as file:
            file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        os.rename(temporary, key, src_dir_fd=directory, dst_dir_fd=directory)


@contextlib.contextmanager
def _open_directory(create: bool) -> Iterator[int]:
    path = cache_directory()
    if create:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not _is_ours(os.fstat(fd)):
            raise PermissionError(f"{path} can be written by others")
        yield fd
    finally:
        os.close(fd)


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022
