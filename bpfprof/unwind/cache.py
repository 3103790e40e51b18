"""Rows of files kept between runs: an `ElfImage` and its stat in, its rows and rules out, decoded only the first time.

A file is known by its build id and a hash of its call frame information, else by device, inode, size and time of
change. Its owner is part of the name either way: a build id is only a claim, and nobody's file may speak for another
user's, nor that of a container's root for the host's.
"""

from __future__ import annotations

import hashlib
import os
import struct

import numpy as np

from bpfprof.array_types import NDArray
from bpfprof.elf.cfi.rules import RULE, RULE_LIMIT, CfaKind, FramePointerKind, Rules
from bpfprof.elf.cfi.sections import read_eh_frame
from bpfprof.elf.image import ElfImage
from bpfprof.private_cache import PrivateCache
from bpfprof.unwind.rows import PAGE_BITS, RULE_MASK, FileRows, compact

_MAGIC = b"bpfrows\0"
_VERSION = 6  # of the layout and of the decoder: raise it when either would give other rows
_HEADER = struct.Struct("<8sIIIIQ")  # magic, version, rules, entries of the page index, rows, first page
_CACHE = PrivateCache("rows", file_limit_bytes=64 << 20, total_limit_bytes=512 << 20)
_SHORTEST_BUILD_ID = 16  # hex digits


def load_rows(image: ElfImage, status: os.stat_result) -> tuple[FileRows, Rules]:
    """Rows of a file and the rules they refer to, from the cache or decoded and then kept.

    Raises ElfError as read_call_frames does.
    """
    name = cache_name(image, status)
    content = _CACHE.load(name)
    found = unpack(content) if content is not None else None
    if found is None:
        found = decode_rows(image)
        _CACHE.store(name, pack(*found))
    return found


def decode_rows(image: ElfImage) -> tuple[FileRows, Rules]:
    """The same, of a file that no later run will see."""
    from bpfprof.elf.cfi.tables import read_call_frames  # it takes long to import, and is seldom needed

    frames = read_call_frames(image)
    return compact(frames), frames.rules


def cache_name(image: ElfImage, status: os.stat_result) -> str:
    """The name that what is known of a file is kept under. Raises ElfError as read_call_frames does."""
    if len(image.build_id) >= _SHORTEST_BUILD_ID and image.build_id.strip("0"):
        digest = hashlib.blake2b(read_eh_frame(image)[0].data, digest_size=16)
        debug_frame = image.section(".debug_frame")
        if debug_frame is not None:
            digest.update(image.read_at(debug_frame.offset, debug_frame.size) or b"")
        parts = [image.build_id, status.st_uid, status.st_size, digest.hexdigest()]
    else:
        parts = ["", status.st_uid, status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns]
    return hashlib.sha256("\0".join(map(str, (_VERSION, *parts))).encode()).hexdigest()


def pack(table: FileRows, rules: Rules) -> bytes:
    """The content of a cache file: the header, then rules, page index and rows, as they are in memory."""
    counts = (len(rules), len(table.pages), len(table.rows))
    header = _HEADER.pack(_MAGIC, _VERSION, *counts, table.first_page)
    return b"".join((header, rules.tobytes(), table.pages.tobytes(), table.rows.tobytes()))


def unpack(content: memoryview | bytes) -> tuple[FileRows, Rules] | None:
    """What `pack` was given, as read-only views of `content`; None when anything in it is out of bounds."""
    if len(content) < _HEADER.size:
        return None
    magic, version, rule_count, page_count, row_count, first_page = _HEADER.unpack_from(content)
    size = _HEADER.size + RULE.itemsize * rule_count + 4 * page_count + 4 * row_count
    if (magic, version, size) != (_MAGIC, _VERSION, len(content)):
        return None
    if not 2 <= rule_count <= RULE_LIMIT or not page_count or not row_count or first_page >> 52:
        return None
    at = _HEADER.size
    rules = np.frombuffer(content, RULE, rule_count, at)
    at += rules.nbytes
    pages = np.frombuffer(content, "<u4", page_count, at)
    rows = np.frombuffer(content, "<u4", row_count, at + pages.nbytes)
    if not _rules_are_sound(rules) or not _rows_are_sound(pages, rows, rule_count):
        return None
    return FileRows(first_page, pages, rows), rules


def _rules_are_sound(rules: Rules) -> bool:
    return bool((rules["cfa_kind"] <= max(CfaKind)).all() and (rules["fp_kind"] <= max(FramePointerKind)).all())


def _rows_are_sound(pages: NDArray[np.uint32], rows: NDArray[np.uint32], rule_count: int) -> bool:
    """Whether every index is within its array; that rows are in order is what the checksum is for."""
    if pages[0] != 1 or pages[-1] != len(rows) or (pages[1:] < pages[:-1]).any() or rows[0] != 0:
        return False
    if (np.diff(pages) > 1 << PAGE_BITS).any():  # more rows than a page has addresses
        return False
    return int((rows & np.uint32(RULE_MASK)).max()) < rule_count
