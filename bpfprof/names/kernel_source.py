"""Kernel functions: /proc/kallsyms in, names of kernel addresses out.

A line is `ADDRESS TYPE NAME`, with a tab and `[module]` for what is not built in: s_show(), kernel/kallsyms.c
(Linux 6.1). Types are those of nm(1). All addresses are 0 for whom kptr_restrict keeps them from.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from bpfprof.elf.symbols.table import LOCAL, SYMBOL_DTYPE, SymbolTable
from bpfprof.names.columns import hex_values, line_columns
from bpfprof.names.symbols import Answer, Symbol, Unresolved
from bpfprof.proc.text import with_controls_replaced

_KALLSYMS = "/proc/kallsyms"
_READ_LIMIT_BYTES = 64 << 20  # Linux 6.1 of Debian has 5 MiB
_FUNCTION_LIMIT_BYTES = 256 << 10  # how far a symbol with nothing behind it reaches
_KERNEL_HALF = 1 << 63  # lower addresses are offsets of per-CPU variables
_RESTRICTED = Unresolved("kernel addresses are hidden (kernel.kptr_restrict)")
_UNREADABLE = Unresolved("/proc/kallsyms cannot be read")
_NOT_COVERED = Unresolved("no kernel symbol covers the address")


class KernelSource:
    """Reads the symbols when first asked. A module that was loaded after that is not known."""

    def __init__(self, path: str = _KALLSYMS) -> None:
        self._path = path
        self._answers: dict[int, Answer] = {}

    @cached_property
    def _symbols(self) -> SymbolTable | Unresolved:
        try:
            with open(self._path, "rb") as file:
                data = file.read(_READ_LIMIT_BYTES)
        except OSError:
            return _UNREADABLE
        return _parse(data)

    @property
    def problem(self) -> str:
        """Why there are no names at all; "" when there are."""
        return self._symbols.reason if isinstance(self._symbols, Unresolved) else ""

    def resolve(self, addresses: npt.NDArray[np.uint64]) -> list[Answer]:
        """One answer an address, in their order; of a module's function the name is `function [module]`."""
        table = self._symbols
        if isinstance(table, Unresolved):
            return [table] * len(addresses)
        distinct, positions = np.unique(table.find(addresses), return_inverse=True)
        known = self._answers
        new = np.array([index for index in distinct.tolist() if index >= 0 and index not in known], np.int64)
        for index, name, start in zip(new.tolist(), table.names(new), table.starts[new].tolist(), strict=True):
            known[index] = Symbol(with_controls_replaced(name), start)
        answers = [known[index] if index >= 0 else _NOT_COVERED for index in distinct.tolist()]
        return [answers[position] for position in positions.tolist()]


def _parse(data: bytes) -> SymbolTable | Unresolved:
    """Functions only; data ends them, because the file gives no sizes."""
    parts: list[npt.NDArray[np.void]] = [np.zeros(0, SYMBOL_DTYPE)]
    bounds = [np.zeros(0, np.uint64)]
    text = np.frombuffer(data, np.uint8)
    for lines in line_columns(data):
        starts, is_good = hex_values(data, lines["start"], lines["first_end"])
        is_good &= (starts >= _KERNEL_HALF) & (lines["rest"] < lines["end"])
        lines, starts = lines[is_good], starts[is_good]
        bounds.append(starts)
        types = text[lines["second"]]
        is_function = np.isin(types | 0x20, np.frombuffer(b"tw", np.uint8))
        symbols = np.zeros(int(is_function.sum()), SYMBOL_DTYPE)
        symbols["start"] = starts[is_function]
        symbols["name"] = lines["rest"][is_function]
        symbols["rank"] = LOCAL * (types[is_function] == ord("t"))
        parts.append(symbols)
    symbols = np.concatenate(parts)
    if not len(symbols):
        return _RESTRICTED if data else _UNREADABLE
    following = np.append(np.unique(np.concatenate(bounds)), ~np.uint64(0))
    behind = following[np.searchsorted(following, symbols["start"], side="right")]
    symbols["end"] = symbols["start"] + np.minimum(behind - symbols["start"], np.uint64(_FUNCTION_LIMIT_BYTES))
    names = data.replace(b"\n", b"\0").replace(b"\t", b" ")
    return SymbolTable(symbols, (lambda offset, size: names[offset : offset + size],))
