"""What of a file something was made from: an `ElfImage` in, the parts of it that were read, and a hash of them.

What is kept between runs holds for whatever file has the same bytes there, and for no other. All that a file says of
itself, as its build id, may be said by another one too.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np

from bpfprof.array_types import NDArray
from bpfprof.elf.image import ElfError, ElfImage

Parts = NDArray[np.uint64]  # two columns: the offset of the first byte in the file, and of the one behind the last
DIGEST_BYTES = 16
_PIECE_BYTES = 1 << 20
_GAP_BYTES, _MOST_PARTS = 64, 1 << 14
_SHORTEST_BUILD_ID = 16  # hex digits


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
