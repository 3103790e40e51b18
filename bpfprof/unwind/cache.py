"""Rows of files kept between runs: an `ElfImage` and its stat in, its rows and rules out, decoded only the first time.

A file is looked up by its build id, else by device, inode, size and time of change; what is found there counts if the
file has the same bytes in all places that were read to make it (elf/parts.py). A build id is only a claim: nobody's
file may speak for another user's, nor that of a container's root for the host's.
"""

from __future__ import annotations

import os
import struct
from dataclasses import replace

import numpy as np

from bpfprof.array_types import NDArray
from bpfprof.elf.cfi.rules import RULE, RULE_LIMIT, CfaKind, FramePointerKind, Rules
from bpfprof.elf.image import ElfImage
from bpfprof.elf.parts import DIGEST_BYTES, WatchedImage, cache_name, digest_for, has_digest
from bpfprof.private_cache import PrivateCache
from bpfprof.unwind.on_demand import RowsOnDemand
from bpfprof.unwind.rows import PAGE_BITS, RULE_MASK, FileRows, compact

_MAGIC = b"bpfrows\0"
VERSION = 11  # of the layout and of the decoder: raise it when either would give other rows
_HEADER = struct.Struct("<8sIIIIQQ")  # magic, version, rules, page index, rows, first page, parts
FILE_LIMIT_BYTES = 64 << 20
_CACHE = PrivateCache("rows", file_limit_bytes=FILE_LIMIT_BYTES, total_limit_bytes=512 << 20)


def load_rows(image: ElfImage, status: os.stat_result) -> tuple[FileRows, Rules]:
    """Rows of a file and the rules they refer to, from the cache or decoded and then kept.

    Raises ElfError as read_call_frames does.
    """
    name = cache_name(image, status, VERSION)
    content = _CACHE.load(name) or b""
    found = unpack(content[DIGEST_BYTES:])
    if found is None or not has_digest(image, found[0].parts, content[:DIGEST_BYTES], name):
        found = decode_rows(image)
        digest = digest_for(image, found[0].parts, name)
        if digest and len(found[0].parts):
            _CACHE.store(name, digest + pack(*found))
    return found


def rows_on_demand(image: ElfImage, status: os.stat_result) -> RowsOnDemand | None:
    """Of a large file, with what is kept of it; None where it does not say well where its functions are."""
    on_demand = RowsOnDemand.of(image)
    if on_demand is not None:
        name = cache_name(image, status, VERSION)
        content = _CACHE.load(name) or b""
        found = unpack(content[DIGEST_BYTES:])
        if found is not None and has_digest(image, found[0].parts, content[:DIGEST_BYTES], name):
            on_demand.take(*found)
    return on_demand


def keep(on_demand: RowsOnDemand, image: ElfImage, status: os.stat_result) -> None:
    """Keeps what was read of a large file for later runs."""
    parts, name = on_demand.image.parts(), cache_name(image, status, VERSION)
    digest = digest_for(image, parts, name)

    def store(table: FileRows, rules: Rules) -> None:
        _CACHE.store(name, digest + pack(replace(table, parts=parts), rules))

    if digest and len(parts):
        on_demand.table(store)


def decode_rows(image: ElfImage) -> tuple[FileRows, Rules]:
    """The same, of a file that no later run will see."""
    from bpfprof.elf.cfi.tables import read_call_frames  # it takes long to import, and is seldom needed

    watched = WatchedImage(image)
    with watched:
        frames = read_call_frames(watched)
        return replace(compact(frames), parts=watched.parts()), frames.rules


def pack(table: FileRows, rules: Rules) -> bytes:
    """What a cache file has behind a hash: a header, then rules, page index, rows and parts as they are in memory."""
    counts = (len(rules), len(table.pages), len(table.rows))
    header = _HEADER.pack(_MAGIC, VERSION, *counts, table.first_page, len(table.parts))
    arrays = (rules, table.pages, table.rows, table.parts)
    return b"".join((header, *(array.tobytes() for array in arrays)))


def unpack(content: memoryview | bytes) -> tuple[FileRows, Rules] | None:
    """What `pack` was given, as read-only views of `content`; None when anything in it is out of bounds."""
    if len(content) < _HEADER.size:
        return None
    magic, version, rule_count, page_count, row_count, first_page, part_count = _HEADER.unpack_from(content)
    size = _HEADER.size + RULE.itemsize * rule_count + 4 * page_count + 4 * row_count + 16 * part_count
    if (magic, version, size) != (_MAGIC, VERSION, len(content)):
        return None
    if not 2 <= rule_count <= RULE_LIMIT or not page_count or not row_count or first_page >> 52:
        return None
    at = _HEADER.size
    rules = np.frombuffer(content, RULE, rule_count, at)
    at += rules.nbytes
    pages = np.frombuffer(content, "<u4", page_count, at)
    rows = np.frombuffer(content, "<u4", row_count, at + pages.nbytes)
    parts = np.frombuffer(content, "<u8", 2 * part_count, at + pages.nbytes + rows.nbytes).reshape(-1, 2)
    if not _rules_are_sound(rules) or not _rows_are_sound(pages, rows, rule_count):
        return None
    return FileRows(first_page, pages, rows, parts), rules


def _rules_are_sound(rules: Rules) -> bool:
    return bool((rules["cfa_kind"] <= max(CfaKind)).all() and (rules["fp_kind"] <= max(FramePointerKind)).all())


def _rows_are_sound(pages: NDArray[np.uint32], rows: NDArray[np.uint32], rule_count: int) -> bool:
    """Whether every index is within its array; that rows are in order is what the checksum is for."""
    if pages[0] != 1 or pages[-1] != len(rows) or (pages[1:] < pages[:-1]).any() or rows[0] != 0:
        return False
    if (np.diff(pages) > 1 << PAGE_BITS).any():  # more rows than a page has addresses
        return False
    return int((rows & np.uint32(RULE_MASK)).max()) < rule_count
