"""Where the separate debug information of an ELF file lies: by build id, then by .gnu_debuglink.

GDB manual, "Debugging Information in Separate Files", says where to look and how the link section is laid out.
"""

from __future__ import annotations

import os
import posixpath
import stat
import struct
import zlib
from collections import deque
from collections.abc import Iterator

from bpfprof.elf.image import ElfError, ElfImage

DEBUG_DIRECTORY = "/usr/lib/debug"
_LINK_LIMIT_BYTES = 4096
_CRC = struct.Struct("<I")
_CRC_CHUNK_BYTES = 1 << 20
_CRC_LIMIT_BYTES = 256 << 20  # of the debug file; the sum takes about a quarter of a second
_SYMLINK_LIMIT = 40  # as path_resolution(7)
_COMPONENT_LIMIT = 256


def find_debug_file(image: ElfImage, path: str, root: str = "/") -> ElfImage | None:
    """The debug file of `image`, open: the caller closes it. None when there is none, or not one of this very build.

    `path` is where the file lies below `root`, for example as /proc/PID/maps has it below /proc/PID/root.
    """
    if len(image.build_id) > 2:
        build_id = image.build_id
        name = f"{DEBUG_DIRECTORY}/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        debug = _open_image(root, name)
        if debug is not None:
            if debug.build_id == build_id:
                return debug
            debug.close()
    link = read_debug_link(image)
    if link is None or not path.startswith("/"):
        return None
    for candidate in _link_places(path, link[0]):
        debug = _open_linked(image, root, candidate, link[1])
        if debug is not None:
            return debug
    return None


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


def _link_places(path: str, name: str) -> Iterator[str]:
    directory = posixpath.dirname(posixpath.normpath(path))
    yield posixpath.join(directory, name)
    yield posixpath.join(directory, ".debug", name)
    yield posixpath.join(DEBUG_DIRECTORY + directory, name)


def _open_linked(image: ElfImage, root: str, path: str, crc: int) -> ElfImage | None:
    debug = _open_image(root, path)
    if debug is not None and not (debug.build_id == image.build_id and _crc_matches(debug, crc)):
        debug.close()
        return None
    return debug


def _crc_matches(image: ElfImage, crc: int) -> bool:
    """Whether the file has this CRC-32, that of zlib; false for one too large to look at."""
    if image.file_size > _CRC_LIMIT_BYTES:
        return False
    value = 0
    for offset in range(0, image.file_size, _CRC_CHUNK_BYTES):
        chunk = image.read_at(offset, min(_CRC_CHUNK_BYTES, image.file_size - offset))
        if chunk is None:
            return False
        value = zlib.crc32(chunk, value)
    return value == crc


def _open_image(root: str, path: str) -> ElfImage | None:
    try:
        return ElfImage(open_inside(root, path))
    except (OSError, ElfError):
        return None


def open_inside(root: str, path: str, *, follow_last: bool = True) -> int:
    """A read-only descriptor of the regular file `path` below `root`; symbolic links do not lead out of `root`.

    OSError when there is none. Nothing but a regular file is ever opened, so neither a FIFO nor a device is touched.
    `follow_last` false also refuses a path whose last part is a symbolic link.
    """
    open_fds = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        _walk(open_fds, path, follow_last)
        if not stat.S_ISREG(os.fstat(open_fds[-1]).st_mode):
            raise OSError(f"{path!r} is not a regular file")
        # The same file again, this time to be read.
        return os.open(f"/proc/self/fd/{open_fds[-1]}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    finally:
        for fd in open_fds:
            os.close(fd)


def _walk(open_fds: list[int], path: str, follow_last: bool) -> None:
    """Push an O_PATH descriptor for each part of `path`; the first of `open_fds` is the root, above which none goes."""
    parts = deque(part for part in path.split("/") if part)
    symlink_count = step_count = 0
    while parts:
        name = parts.popleft()
        step_count += 1
        if step_count > _COMPONENT_LIMIT:
            raise OSError(f"{path!r} has too many parts")
        if name == "..":
            if len(open_fds) > 1:
                os.close(open_fds.pop())
        elif name != ".":
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=open_fds[-1])
            open_fds.append(fd)
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                symlink_count += 1
                if symlink_count > _SYMLINK_LIMIT or not (parts or follow_last):
                    raise OSError(f"{path!r} is a symbolic link, or has too many")
                target = os.readlink("", dir_fd=fd)
                for _ in range(len(open_fds) - 1 if target.startswith("/") else 1):
                    os.close(open_fds.pop())
                parts.extendleft(part for part in reversed(target.split("/")) if part)
