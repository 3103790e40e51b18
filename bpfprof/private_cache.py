"""Files kept between runs that nobody else could have written: a name and bytes in, the same bytes out, or None.

The folder and its files belong to the user that runs and no one else can write there; a file appears whole or not at
all, and is checked against its own checksum when it is read. A cache never fails: without it the work is done again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from bpfprof.dataclass import dataclass

_MAPPED_BYTES = 1 << 20
_CHECKSUM_BYTES = 25  # CRC-32 and size in hex: against damage, for nobody else can write here


def cache_directory() -> Path:
    """Where it lies: /var/cache for root, whose HOME may be another user's under sudo, else the user's own cache."""
    if os.geteuid() == 0:
        return Path("/var/cache/bpfprof")
    home = os.path.expanduser("~")  # "~" for a user without a name, as in a container
    return Path(os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache") / "bpfprof"


@dataclass(frozen=True)
class PrivateCache:
    """Files in one folder of the cache ("" is the cache itself), of at most `file_limit_bytes` each.

    With a `total_limit_bytes` the oldest files go when there are more bytes than that.
    """

    folder: str
    file_limit_bytes: int
    total_limit_bytes: int | None = None

    def load(self, name: str) -> memoryview | None:
        """What was stored under this name; None when there is nothing, or it is not ours or not whole."""
        try:
            with self._open_folder(create=False) as folder:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                with os.fdopen(fd, "rb", buffering=0) as file:
                    status = os.fstat(fd)
                    limit = self.file_limit_bytes + _CHECKSUM_BYTES
                    if not stat.S_ISREG(status.st_mode) or not _is_ours(status) or status.st_size > limit:
                        return None
                    if status.st_size >= _MAPPED_BYTES:  # it is replaced as a whole, never cut
                        data = memoryview(mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ))
                    else:
                        data = memoryview(file.read(status.st_size))
        except (OSError, ValueError):
            return None
        content = data[_CHECKSUM_BYTES:]
        return content if data[:_CHECKSUM_BYTES] == _checksum(content) else None

    def store(self, name: str, content: bytes) -> None:
        """Keeps the content; where that is not possible, nothing happens."""
        if len(content) > self.file_limit_bytes:
            return
        temporary = f"{name}.{os.urandom(4).hex()}"
        with contextlib.suppress(OSError, ValueError), self._open_folder(create=True) as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(_checksum(content))
                    file.write(content)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(temporary, dir_fd=folder)
                raise
            if self.total_limit_bytes is not None:
                _drop_oldest(folder, self.total_limit_bytes, name)

    def is_usable(self) -> bool:
        """Whether what is stored will be there at the next run."""
        with contextlib.suppress(OSError, ValueError), self._open_folder(create=True) as folder:
            return os.access(".", os.W_OK, dir_fd=folder)
        return False

    @contextlib.contextmanager
    def _open_folder(self, create: bool) -> Iterator[int]:
        path = cache_directory()
        if not path.is_absolute():
            raise FileNotFoundError("this user has no home")
        if create:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as open_folders:
            folder = _open_own(path, None)
            open_folders.callback(os.close, folder)
            if self.folder:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(self.folder, 0o700, dir_fd=folder)
                folder = _open_own(self.folder, folder)
                open_folders.callback(os.close, folder)
            yield folder


def _checksum(content: bytes | memoryview) -> bytes:
    return b"%08x%016x\n" % (zlib.crc32(content), len(content))


def _open_own(path: str | Path, parent: int | None) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    if not _is_ours(os.fstat(fd)):
        os.close(fd)
        raise PermissionError(f"{path} can be written by others")
    return fd


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _drop_oldest(folder: int, total_limit_bytes: int, newest: str) -> None:
    files = [(os.stat(name, dir_fd=folder, follow_symlinks=False), name) for name in os.listdir(folder)]
    total = sum(status.st_size for status, _ in files)
    for status, name in sorted(files, key=lambda item: item[0].st_mtime_ns):
        if total <= total_limit_bytes:
            return
        if name != newest:
            os.unlink(name, dir_fd=folder)
            total -= status.st_size
