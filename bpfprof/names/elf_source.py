"""Native functions of one file: ELF addresses in, names or reasons out."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from bpfprof.elf.image import ElfImage
from bpfprof.elf.symbols.plt import read_plt
from bpfprof.elf.symbols.reader import read_symbols
from bpfprof.elf.symbols.table import SymbolTable
from bpfprof.names.symbols import Answer, Symbol, Unresolved, demangle
from bpfprof.proc.text import with_controls_replaced

_NO_SYMBOLS = Unresolved("the file has no symbols")
_NOT_COVERED = Unresolved("no symbol of the file covers the address")
_NO_NAME = Unresolved("the name of the symbol cannot be read")


class ElfSource:
    """Symbols are read when first asked, and names that are new at any time: keep both files open.

    Not for several threads at once.
    """

    def __init__(self, image: ElfImage, debug: ElfImage | None = None) -> None:
        self._image = image
        self._debug = debug
        self._answers: tuple[dict[int, Answer], dict[int, Answer]] = ({}, {})

    @cached_property
    def _symbols(self) -> SymbolTable:
        return read_symbols(self._image, self._debug)

    @cached_property
    def _plt(self) -> SymbolTable:
        return read_plt(self._image)

    def resolve(self, addresses: npt.NDArray[np.uint64]) -> list[Answer]:
        """One answer an ELF address, in their order. A stub of the procedure linkage table is `function@plt`."""
        distinct, positions = np.unique(addresses, return_inverse=True)
        miss = _NOT_COVERED if len(self._symbols) else _NO_SYMBOLS
        found = self._symbols.find(distinct)
        answers: list[Answer] = self._named(self._symbols, found, "", self._answers[0], miss)
        missed = np.flatnonzero(found < 0)
        if len(missed):
            stubs = self._named(self._plt, self._plt.find(distinct[missed]), "@plt", self._answers[1], miss)
            for position, answer in zip(missed.tolist(), stubs, strict=True):
                answers[position] = answer
        return [answers[position] for position in positions.tolist()]

    def _named(
        self, table: SymbolTable, indices: npt.NDArray[np.int64], suffix: str, known: dict[int, Answer], miss: Answer
    ) -> list[Answer]:
        wanted = indices.tolist()
        new = np.array(sorted({index for index in wanted if index >= 0 and index not in known}), np.int64)
        for index, name, start in zip(new.tolist(), table.names(new), table.starts[new].tolist(), strict=True):
            readable = with_controls_replaced(demangle(name) + suffix) if name else ""
            known[index] = Symbol(readable, start) if readable else _NO_NAME
        return [known[index] if index >= 0 else miss for index in wanted]
