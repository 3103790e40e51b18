"""What of a file something was made from: an `ElfImage` in, the parts of it that were read, and a hash of them.

What is kept between runs holds for whatever file has the same bytes there, and for no other. All that a file says of
itself, as its build id, may be said by another one too. The bytes are read again unless the kernel says that this very
file was not changed since they were: its inode on a disk of this machine, and when that was changed last, which nobody
can set. Of other file systems (FUSE, overlays of containers) anybody may have made all that up.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time

import numpy as np

from bpfprof.array_types import NDArray
from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.private_cache import PrivateCache

Parts = NDArray[np.uint64]  # two columns: the offset of the first byte in the file, and of the one behind the last
DIGEST_BYTES = 16
_PIECE_BYTES = 1 << 20
_GAP_BYTES, _MOST_PARTS = 64, 1 << 14
_SHORTEST_BUILD_ID = 16  # hex digits
# Digests that files had, each under a hash of the file's inode and of what it was for.
_DIGESTS = PrivateCache("digests", file_limit_bytes=DIGEST_BYTES, total_limit_bytes=1 << 20)
# Where a file is mapped and written to, the kernel tells the change when the page goes to the disk, in some 30 s
# (vm.dirty_expire_centisecs).
_SETTLED_NS = 120 * 10**9


class WatchedImage(ElfImage):
    """The same file as another image, from its headers on. Not for several threads at once."""

    def __init__(self, image: ElfImage) -> None:
        """Raises ElfError where that is closed."""
        self._read: set[tuple[int, int]] = set()
        try:
            fd = os.dup(image.fileno())
        except OSError as error:
            raise ElfError("the file is closed") from error
        super().__init__(fd)

    def read_at(self, offset: int, size: int) -> bytes | None:
        data = super().read_at(offset, size)
        if data:  # whether a part lies outside depends on the size of the file alone
            self._read.add((offset, offset + size))
        return data

    def had_read(self, parts: Parts) -> None:
        """What is known of the file was made from these parts, too."""
        self._read.update(map(tuple, parts.tolist()))

    def parts(self) -> Parts:
        """What has been read so far, in ascending order and apart from each other."""
        gap, parts = _GAP_BYTES, sorted(self._read)
        while True:
            joined: list[list[int]] = []
            for begin, end in parts:
                if joined and begin <= joined[-1][1] + gap:
                    joined[-1][1] = max(joined[-1][1], end)
                else:
                    joined.append([begin, end])
            if len(joined) <= _MOST_PARTS:
                return np.array(joined, np.uint64).reshape(-1, 2)
            parts, gap = [(begin, end) for begin, end in joined], gap * 4


def cache_name(image: ElfImage, status: os.stat_result, version: int) -> str:
    """The name that what a version of something knows of a file is looked up under."""
    if len(image.build_id) >= _SHORTEST_BUILD_ID and image.build_id.strip("0"):
        parts = [image.build_id, status.st_uid, status.st_size]
    else:
        parts = ["", status.st_uid, status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns]
    return hashlib.sha256("\0".join(map(str, (version, *parts))).encode()).hexdigest()


def digest_of(image: ElfImage, parts: Parts) -> bytes:
    """Of these parts of a file; b"" where it does not have them."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for begin, end in parts.tolist():
        for at in range(begin, end, _PIECE_BYTES):
            data = image.read_at(at, min(_PIECE_BYTES, end - at))
            if data is None:
                return b""
            digest.update(data)
    return digest.digest()


def has_digest(image: ElfImage, parts: Parts, digest: bytes | memoryview, name: str) -> bool:
    """Whether these parts of a file have this digest; name: see digest_for()."""
    unchanged = _unchanged(image, name)
    if unchanged and digest == _DIGESTS.load(unchanged):
        return True
    return digest == digest_for(image, parts, name)


def digest_for(image: ElfImage, parts: Parts, name: str) -> bytes:
    """As digest_of(), and remembered for this file while it is not changed; name: of what was made from the parts."""
    unchanged = _unchanged(image, name)
    digest = digest_of(image, parts)
    if digest and unchanged == _unchanged(image, name) != "":
        _DIGESTS.store(unchanged, digest)
    return digest


def _unchanged(image: ElfImage, name: str) -> str:
    """What only this file has, as it is now; "" where it was changed just now, or that is not known."""
    with contextlib.suppress(OSError):
        status = image.status()
        changed_ns = max(status.st_ctime_ns, status.st_mtime_ns)
        if os.major(status.st_dev) and changed_ns + _SETTLED_NS < time.time_ns():
            numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            return hashlib.sha256("\0".join(map(str, (name, *numbers))).encode()).hexdigest()
    return ""
