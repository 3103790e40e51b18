"""Native functions of one ELF file: addresses in it in, functions (and lines) out.

This happens while the target is there, so that a report needs neither the target nor its files.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from bpfprof import array_types as npt
from bpfprof.cpython.collector import collector
from bpfprof.cpython.eval_ranges import EVAL_FUNCTION, NO_RANGES, EvalRanges, eval_ranges
from bpfprof.elf.image import ElfImage
from bpfprof.elf.lines import LineReader
from bpfprof.elf.parts import DIGEST_BYTES, Parts, WatchedImage, cache_name, digest_for, has_digest
from bpfprof.elf.symbols.kept import kept_symbols
from bpfprof.elf.symbols.plt import are_in_plt, read_plt
from bpfprof.elf.symbols.reader import read_symbols
from bpfprof.elf.symbols.table import SymbolTable
from bpfprof.model.frames import COLLECTION
from bpfprof.model.samples import NAME_EVAL, NAME_INLINED
from bpfprof.names.symbols import SymbolNames, demangle
from bpfprof.private_cache import PrivateCache
from bpfprof.unwind.cache import VERSION

_EVAL_CACHE = PrivateCache("eval", file_limit_bytes=1 << 19, total_limit_bytes=1 << 22)
_LARGE_BYTES = 16 << 20
_PART_COUNT = struct.Struct("<Q")

Name = tuple[str, str, int, int]  # function, file, line, flags of NAME_DTYPE


class ElfNames:
    """Keep both files open. Not for several threads at once."""

    def __init__(
        self,
        image: ElfImage,
        debug: ElfImage | None = None,
        with_lines: bool = False,
        symbols: SymbolTable | None = None,
    ) -> None:
        """symbols: of the image, if they were read already."""
        self._image = image
        if symbols is None or debug is not None:
            symbols = read_symbols(image, debug) if debug is not None else kept_symbols(image)
        self._symbols = SymbolNames(symbols)
        self._lines = LineReader(image, debug) if with_lines else None
        self._ranges = kept_eval_ranges(image)

    @property
    def size_bytes(self) -> int:
        """Memory that its symbols take."""
        return self._symbols.table.size_bytes

    @cached_property
    def _stubs(self) -> SymbolNames:
        return SymbolNames(read_plt(self._image), "@plt")

    @cached_property
    def _collector(self) -> range:
        """Of an interpreter without that name: where collections of garbage begin."""
        is_interpreter = len(self._ranges.starts) > 0
        return collector(self._image, self._has_name) if is_interpreter else range(0)

    def _has_name(self, address: int) -> bool:
        return self._symbols.resolve(np.array([address], np.uint64)) != [""]

    def functions(self, addresses: npt.NDArray[np.uint64]) -> list[str]:
        """The symbol of each address, "" for none. A stub of the procedure linkage table is `function@plt`."""
        names = self._symbols.resolve(addresses)
        missed = np.array([position for position, name in enumerate(names) if not name], np.int64)
        stubs = missed[are_in_plt(self._image, addresses[missed])]
        if len(stubs):
            for position, name in zip(stubs.tolist(), self._stubs.resolve(addresses[stubs])):
                names[position] = name
        for position in missed.tolist():
            names[position] = names[position] or COLLECTION * (int(addresses[position]) in self._collector)
        return names

    def resolve(self, addresses: Sequence[int]) -> list[tuple[Name, ...]]:
        """For each address the functions it is in, innermost first: more than one where functions were inlined.

        () when there is no name; an address in the evaluation function has a row in any case.
        """
        array = np.array(addresses, np.uint64)
        is_eval = self._ranges.stands_for_run(array).tolist()
        lines = self._lines.look_up(addresses) if self._lines is not None else [()] * len(addresses)
        result = []
        for function, found, flag in zip(self.functions(array), lines, is_eval):
            rows = [
                (demangle(line.function), line.file, line.line, NAME_INLINED if line.is_inlined else 0)
                for line in found
            ]
            if not rows and (function or flag):
                rows = [(function, "", 0, 0)]
            elif function:  # DWARF has no full name of a function that is not seen outside, nor of its cold part
                rows[-1] = (function, *rows[-1][1:])
            if flag:
                rows = [(*name[:3], name[3] | NAME_EVAL) for name in rows]
            result.append(tuple(rows))
        return result


def kept_eval_ranges(image: ElfImage) -> EvalRanges:
    """What `eval_ranges` finds, kept between runs: of a stripped interpreter it takes the rules of the whole file.

    Of nearly every file that is nothing, which takes as long to find as its names are long.
    """
    status = image.status()
    if status.st_size < _LARGE_BYTES and image.find_symbol(EVAL_FUNCTION) is None:
        return NO_RANGES
    name = cache_name(image, status, VERSION)
    content = _EVAL_CACHE.load(name) or b""
    found = _unpacked(content[DIGEST_BYTES:])
    if found is not None and has_digest(image, found[1], content[:DIGEST_BYTES], f"{name} eval"):
        return found[0]
    watched = WatchedImage(image)
    with watched:
        ranges, parts = eval_ranges(watched), watched.parts()
    content = digest_for(image, parts, f"{name} eval") + _PART_COUNT.pack(len(parts)) + parts.tobytes()
    content += np.stack((ranges.starts, ranges.ends, ranges.is_handler)).astype("<u8").tobytes()
    _EVAL_CACHE.store(name, content)
    return ranges


def _unpacked(content: memoryview | bytes) -> tuple[EvalRanges, Parts] | None:
    if len(content) < _PART_COUNT.size or len(content) % 8:
        return None
    (count,) = _PART_COUNT.unpack_from(content)
    numbers = np.frombuffer(content, "<u8", offset=_PART_COUNT.size)
    if not 0 < count <= len(numbers) // 2 or (len(numbers) - 2 * count) % 3:
        return None
    starts, ends, is_handler = numbers[2 * count :].reshape(3, -1)
    return EvalRanges(starts, ends, is_handler != 0), numbers[: 2 * count].reshape(-1, 2)
