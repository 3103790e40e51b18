"""Where the separate debug information of an ELF file lies: by build id, then by .gnu_debuglink.

GDB manual, "Debugging Information in Separate Files", says where to look and how the link section is laid out.
"""

from __future__ import annotations

import ctypes
import os
import posixpath
import stat
import struct
import zlib
from collections.abc import Callable, Iterator

from bpfprof.elf.image import ElfError, ElfImage

DEBUG_DIRECTORY = "/usr/lib/debug"
_LINK_LIMIT_BYTES = 4096
_CRC = struct.Struct("<I")
_CRC_CHUNK_BYTES = 1 << 20
_CRC_LIMIT_BYTES = 256 << 20  # of all that may be the debug file; the sum takes about a quarter of a second
# openat2(2), since Linux 5.6.
_SYSCALL_OPENAT2, _RESOLVE_IN_ROOT = 437, 0x10
_OPEN_HOW = struct.Struct("QQQ")  # flags, mode, resolve
_libc = ctypes.CDLL(None, use_errno=True)


def find_debug_file(
    image: ElfImage, path: str, root: str = "/", open_file: Callable[[str, str], int] | None = None
) -> ElfImage | None:
    """The debug file of `image`, open: the caller closes it. None when there is none, or not one of this very build.

    `path` is where the file lies below `root`, for example as /proc/PID/maps has it below /proc/PID/root.
    open_file: instead of open_inside(), where the root is a stranger's.
    """
    room = _CRC_LIMIT_BYTES
    for place, crc in _places(image, path):
        try:
            debug = ElfImage((open_file or open_inside)(root, place))
        except (OSError, ElfError):
            continue
        if debug.build_id == image.build_id and (crc is None or debug.file_size <= room):
            if crc is None or _crc_of(debug) == crc:
                return debug
            room -= debug.file_size
        debug.close()
    return None


def _places(image: ElfImage, path: str) -> Iterator[tuple[str, int | None]]:
    """Where to look, and the CRC-32 that the file there must have."""
    if len(image.build_id) > 2:
        yield f"{DEBUG_DIRECTORY}/.build-id/{image.build_id[:2]}/{image.build_id[2:]}.debug", None
    link = read_debug_link(image)
    if link is not None and path.startswith("/"):
        name, crc = link
        directory = posixpath.dirname(posixpath.normpath(path))
        for folder in (directory, posixpath.join(directory, ".debug"), DEBUG_DIRECTORY + directory):
            yield posixpath.join(folder, name), crc


def read_debug_link(image: ElfImage) -> tuple[str, int] | None:
    """(file name, CRC-32 of the file) from .gnu_debuglink; None without one or when the name is not a mere name."""
    section = image.section(".gnu_debuglink")
    if section is None or section.size > _LINK_LIMIT_BYTES:
        return None
    data = image.read_at(section.offset, section.size) or b""
    raw = data.partition(b"\0")[0]
    crc_offset = len(raw) + 4 & ~3  # the zero byte, and padding to 4 bytes
    if crc_offset + _CRC.size > len(data) or raw in (b"", b".", b"..") or b"/" in raw or len(raw) > 255:
        return None
    return os.fsdecode(raw), _CRC.unpack_from(data, crc_offset)[0]


def _crc_of(image: ElfImage) -> int | None:
    """The CRC-32 of the file, that of zlib; None where it cannot be read."""
    value = 0
    for offset in range(0, image.file_size, _CRC_CHUNK_BYTES):
        chunk = image.read_at(offset, min(_CRC_CHUNK_BYTES, image.file_size - offset))
        if chunk is None:
            return None
        value = zlib.crc32(chunk, value)
    return value


def open_inside(root: str, path: str, *, follow_last: bool = True) -> int:
    """A read-only descriptor of the regular file `path` below `root`; symbolic links do not lead out of `root`.

    OSError when there is none. Nothing but a regular file is ever opened, so neither a FIFO nor a device is touched.
    `follow_last` false also refuses a path whose last part is a symbolic link.
    """
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow_last else os.O_NOFOLLOW)
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    how = _OPEN_HOW.pack(flags, 0, _RESOLVE_IN_ROOT)
    fd = _libc.syscall(_SYSCALL_OPENAT2, root_fd, os.fsencode(path), how, _OPEN_HOW.size)
    error = ctypes.get_errno()
    os.close(root_fd)
    if fd < 0:
        raise OSError(error, os.strerror(error), path)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{path!r} is not a regular file")
        # The same file again, this time to be read.
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    finally:
        os.close(fd)
