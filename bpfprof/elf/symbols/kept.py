"""The symbols of large files kept between runs: an ElfImage in, its table of symbols out.

libtorch_cpu has 342,000 functions, which take 0.4 s to be put in order. What is found counts if the file has the same
bytes in all places that were read to make it, as for rows (unwind/cache.py); names are read from the file itself.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from bpfprof.elf.image import ElfImage
from bpfprof.elf.parts import DIGEST_BYTES, Parts, WatchedImage, cache_name, digest_for, has_digest
from bpfprof.elf.symbols.reader import SectionText, read_symbols
from bpfprof.elf.symbols.table import COLUMNS, OF_SYMBOLS, SymbolTable
from bpfprof.private_cache import PrivateCache

_CACHE = PrivateCache("symbols", file_limit_bytes=64 << 20, total_limit_bytes=256 << 20)
_LARGE_BYTES = 1 << 20  # smaller ones take some 0.03 s
_HEADER = struct.Struct("<IIIII")  # version, parts, texts, symbols, addresses that have any
_VERSION = 1
_EMBEDDED = ".gnu_debugdata"


def kept_symbols(image: ElfImage, later: Callable[[Callable[[], None]], None] = lambda keep: keep()) -> SymbolTable:
    """As read_symbols() of one file.

    later: is given what keeps them, which takes a tenth of a second, to be called before `image` is closed.
    """
    name = cache_name(image, image.status(), _VERSION)
    content = _CACHE.load(name)
    if content is not None:
        found = _unpacked(image, content[DIGEST_BYTES:])
        if found is not None and has_digest(image, found[1], content[:DIGEST_BYTES], name):
            return found[0]
    if image.section(_EMBEDDED) is not None:
        return read_symbols(image)
    with contextlib.closing(WatchedImage(image)) as watched:
        table, parts = read_symbols(watched), watched.parts()
    if table.problems:
        return read_symbols(image)
    places = [(text.start, text.length) for text in table.texts if isinstance(text, SectionText)]
    if table.size_bytes >= _LARGE_BYTES:
        later(partial(_keep, image, table, parts, places, name))
    return SymbolTable.of_columns(table.columns, _texts(image, places), has_versions=True)


def _keep(image: ElfImage, table: SymbolTable, parts: Parts, places: Sequence[tuple[int, int]], name: str) -> None:
    counts = _VERSION, len(parts), len(places), len(table.columns[0]), len(table)
    arrays = (parts, np.array(places, np.uint64), *table.columns)
    packed = _HEADER.pack(*counts) + b"".join(array.tobytes() for array in arrays)
    _CACHE.store(name, digest_for(image, parts, name) + packed)


def _unpacked(image: ElfImage, content: memoryview) -> tuple[SymbolTable, Parts] | None:
    """None where it is damaged, or of another version."""
    if len(content) < _HEADER.size:
        return None
    version, part_count, text_count, symbols, addresses = _HEADER.unpack_from(content)
    dtypes = [np.dtype("<u8")] * 2 + [np.dtype(form) for form in COLUMNS.values()]
    counts = [
        2 * part_count,
        2 * text_count,
        *(symbols if place < OF_SYMBOLS else addresses for place in range(len(COLUMNS))),
    ]
    sizes = [dtype.itemsize * count for dtype, count in zip(dtypes, counts)]
    if version != _VERSION or len(content) != _HEADER.size + sum(sizes):
        return None
    begins = np.cumsum([_HEADER.size, *sizes]).tolist()
    parts, places, *columns = (
        np.frombuffer(content, dtype, count, begin) for dtype, count, begin in zip(dtypes, counts, begins)
    )
    texts = _texts(image, places.reshape(-1, 2).tolist())
    try:
        return SymbolTable.of_columns(columns, texts, has_versions=True), parts.reshape(-1, 2)
    except ValueError:
        return None


def _texts(image: ElfImage, places: Sequence[Sequence[int]]) -> list[SectionText]:
    return [SectionText(image.read_at, start, length) for start, length in places]
