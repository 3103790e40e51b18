"""Kernel functions: /proc/kallsyms in, a table of symbols out.

A line is `ADDRESS TYPE NAME`, with a tab and `[module]` for what is not built in: s_show(), kernel/kallsyms.c
(Linux 6.1). Types are those of nm(1). All addresses are 0 for whom kptr_restrict keeps them from.
"""

from __future__ import annotations

import contextlib

import numpy as np

from bpfprof import array_types as npt
from bpfprof.elf.symbols.table import LOCAL, SYMBOL_DTYPE, SymbolTable
from bpfprof.model.grouping import each_once
from bpfprof.names.columns import hex_values, line_columns

_READ_LIMIT_BYTES = 64 << 20  # Linux 6.1 of Debian has 5 MiB
_FUNCTION_LIMIT_BYTES = 256 << 10  # how far a symbol with nothing behind it reaches
_KERNEL_HALF = 1 << 63  # lower addresses are offsets of per-CPU variables


def read_kernel_symbols(path: str = "/proc/kallsyms") -> SymbolTable:
    """No symbols where the file cannot be read or holds no addresses; of a module's function `function [module]`.

    A module that was loaded after that is not known.
    """
    data = b""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        data = file.read(_READ_LIMIT_BYTES)
    return _parse(data)


def _parse(data: bytes) -> SymbolTable:
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
    following = np.append(each_once(np.concatenate(bounds)), ~np.uint64(0))
    behind = following[np.searchsorted(following, symbols["start"], side="right")]
    symbols["end"] = symbols["start"] + np.minimum(behind - symbols["start"], np.uint64(_FUNCTION_LIMIT_BYTES))
    names = data.replace(b"\n", b"\0").replace(b"\t", b" ")
    return SymbolTable(symbols, (lambda offset, size: names[offset : offset + size],))
