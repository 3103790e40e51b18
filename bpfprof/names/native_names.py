"""Names of native and kernel frames: a file and addresses in it in, functions (and lines) out.

This happens while the target is there, so that a report needs neither the target nor its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from bpfprof.cpython.eval_ranges import EVAL_FUNCTION, EvalRanges, eval_ranges
from bpfprof.elf.image import ElfImage
from bpfprof.elf.lines import LineReader
from bpfprof.elf.symbols.debug_files import find_debug_file
from bpfprof.model.ids import Pid
from bpfprof.model.samples import NAME_EVAL, NAME_INLINED
from bpfprof.names.elf_source import ElfSource
from bpfprof.names.kernel_source import KernelSource
from bpfprof.names.perf_map_source import PerfMapSource
from bpfprof.names.symbols import Symbol, Unresolved, demangle
from bpfprof.private_cache import PrivateCache
from bpfprof.unwind.cache import cache_name

_EVAL_CACHE = PrivateCache("eval", file_limit_bytes=1 << 16, total_limit_bytes=1 << 20)

Name = tuple[str, str, int, int]  # function, file, line, flags of NAME_DTYPE


class NamedFile(Protocol):
    """What addresses are in (see capture.code_files)."""

    @property
    def number(self) -> int: ...
    @property
    def is_kernel(self) -> bool: ...
    @property
    def image(self) -> ElfImage | None: ...  # None: memory without a file
    @property
    def path(self) -> str: ...
    @property
    def root(self) -> str: ...  # the directory that the path begins at
    @property
    def pid(self) -> Pid: ...


@dataclass(slots=True)
class _ElfNames:
    source: ElfSource
    ranges: EvalRanges
    lines: LineReader | None


@dataclass(slots=True)
class NativeNames:
    """Symbols of a file are read when the first of its addresses is asked for."""

    with_lines: bool = False
    _elf: dict[int, _ElfNames] = field(default_factory=dict)
    _kernel: KernelSource = field(default_factory=KernelSource)

    def resolve(self, file: NamedFile, addresses: Sequence[int]) -> list[tuple[Name, ...]]:
        """Of each address the functions it is in, innermost first: more than one where functions were inlined.

        () when there is no name; an address in the evaluation function has a row in any case.
        """
        array = np.array(addresses, np.uint64)
        if file.is_kernel:
            full = array | np.uint64(0xFFFF << 48)
            return [_plain(answer) for answer in self._kernel.resolve(full)]
        if file.image is None:
            source = PerfMapSource.read(file.pid)
            if isinstance(source, Unresolved):
                return [()] * len(addresses)
            return [_plain(answer) for answer in source.resolve(array)]
        names = self._elf_names(file, file.image)
        is_eval = names.ranges.stands_for_run(array).tolist()
        answers = names.source.resolve(array)
        lines = names.lines.look_up(addresses) if names.lines is not None else [()] * len(addresses)
        result = []
        for answer, found, flag in zip(answers, lines, is_eval, strict=True):
            plain = _plain(answer) or ((("", "", 0, 0),) if flag else ())
            rows = [
                (demangle(line.function), line.file, line.line, NAME_INLINED if line.is_inlined else 0)
                for line in found
            ]
            if rows and plain:  # DWARF has no full name of a function that is not seen outside, nor of its cold part
                rows[-1] = (plain[0][0], *rows[-1][1:])
            chosen = tuple(rows) or plain
            if flag:
                chosen = tuple((*name[:3], name[3] | NAME_EVAL) for name in chosen)
            result.append(chosen)
        return result

    def _elf_names(self, file: NamedFile, image: ElfImage) -> _ElfNames:
        names = self._elf.get(file.number)
        if names is None:
            debug = find_debug_file(image, file.path, file.root)
            lines = LineReader(image, debug) if self.with_lines else None
            names = self._elf[file.number] = _ElfNames(ElfSource(image, debug), kept_eval_ranges(image), lines)
        return names


def kept_eval_ranges(image: ElfImage) -> EvalRanges:
    """What `eval_ranges` finds, kept between runs: of a stripped interpreter it takes the rules of the whole file."""
    if image.find_symbol(EVAL_FUNCTION) is None:
        return eval_ranges(image)
    name = cache_name(image.build_id, image.status())
    content = _EVAL_CACHE.load(name)
    if content is None or len(content) % 24:
        ranges = eval_ranges(image)
        _EVAL_CACHE.store(name, np.stack((ranges.starts, ranges.ends, ranges.is_handler), dtype=np.uint64).tobytes())
        return ranges
    starts, ends, is_handler = np.frombuffer(content, "<u8").reshape(3, -1)
    return EvalRanges(starts, ends, is_handler != 0)


def _plain(answer: Symbol | Unresolved) -> tuple[Name, ...]:
    return ((answer.name, "", 0, 0),) if isinstance(answer, Symbol) else ()
