"""Names that a process gives to code it made at run time: /tmp/perf-PID.map in, names of runtime addresses out.

Format: tools/perf/Documentation/jit-interface.txt (Linux 6.1): lines of `START SIZE symbolname`, in hexadecimal.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bpfprof.elf.symbols.debug_files import open_inside
from bpfprof.elf.symbols.table import SYMBOL_DTYPE, SymbolTable
from bpfprof.model.ids import Pid, Tid
from bpfprof.names.columns import hex_values, line_columns
from bpfprof.names.symbols import Answer, Symbol, Unresolved, demangle
from bpfprof.proc.tasks import namespace_tids
from bpfprof.proc.text import with_controls_replaced

_MAP_LIMIT_BYTES = 32 << 20
_LINE_LIMIT = 1 << 19
_STATUS_LIMIT_BYTES = 64 << 10
_NOT_COVERED = Unresolved("no line of the process's perf map covers the address")
_NO_NAME = Unresolved("the line of the process's perf map has no name")


@dataclass(frozen=True, slots=True)
class PerfMapSource:
    """One map as it was when read. `malformed_count` lines were passed over; `is_cut` says the map was longer."""

    symbols: SymbolTable
    malformed_count: int = 0
    is_cut: bool = False

    @classmethod
    def read(cls, pid: Pid) -> PerfMapSource | Unresolved:
        """The map in the process's own /tmp, if it is a regular file that belongs to the process's user."""
        tids, uid = namespace_tids(pid, Tid(pid)), _effective_uid(pid)
        if not tids or uid is None:
            return Unresolved("the process is gone")
        try:
            fd = open_inside(f"/proc/{pid}/root", f"/tmp/perf-{tids[-1]}.map", follow_last=False)
        except OSError:
            return Unresolved("the process has no perf map, or it is not a regular file")
        try:
            if os.fstat(fd).st_uid != uid:
                return Unresolved("the perf map does not belong to the process's user")
            return cls.parse(_read(fd, _MAP_LIMIT_BYTES + 1))
        except OSError:
            return Unresolved("the perf map cannot be read")
        finally:
            os.close(fd)

    @classmethod
    def parse(cls, data: bytes) -> PerfMapSource:
        """At most 32 MiB and 524,288 lines of it. A later line replaces an earlier one of the same start."""
        is_cut = len(data) > _MAP_LIMIT_BYTES
        data = data[: data.rfind(b"\n", 0, _MAP_LIMIT_BYTES) + 1] if is_cut else data
        parts = [np.zeros(0, SYMBOL_DTYPE)]
        line_count = malformed_count = 0
        for lines in line_columns(data):
            if line_count + len(lines) > _LINE_LIMIT:
                is_cut = True
                lines = lines[: _LINE_LIMIT - line_count]
            line_count += len(lines)
            symbols = _symbols(data, lines)
            malformed_count += len(lines) - len(symbols)
            parts.append(symbols)
            if is_cut and line_count == _LINE_LIMIT:
                break
        symbols = np.concatenate(parts)[::-1]
        symbols = symbols[np.unique(symbols["start"], return_index=True)[1]]
        text = data.replace(b"\n", b"\0")
        table = SymbolTable(symbols, (lambda offset, size: text[offset : offset + size],))
        return cls(table, malformed_count, is_cut)

    def resolve(self, addresses: npt.NDArray[np.uint64]) -> list[Answer]:
        """One answer a runtime address, in their order."""
        found = self.symbols.find(addresses)
        starts = self.symbols.starts
        return [
            _NOT_COVERED
            if index < 0
            else (Symbol(with_controls_replaced(demangle(name)), int(starts[index])) if name else _NO_NAME)
            for index, name in zip(found.tolist(), self.symbols.names(found), strict=True)
        ]


def _symbols(data: bytes, lines: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    starts, is_start = hex_values(data, lines["start"], lines["first_end"])
    sizes, is_size = hex_values(data, lines["second"], lines["second_end"])
    is_good = is_start & is_size & (sizes > 0) & (lines["rest"] < lines["end"])
    starts, sizes = starts[is_good], sizes[is_good]
    symbols = np.zeros(len(starts), SYMBOL_DTYPE)
    symbols["start"] = starts
    symbols["end"] = starts + np.minimum(sizes, ~starts)
    symbols["name"] = lines["rest"][is_good]
    return symbols


def _read(fd: int, limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0 and (part := os.read(fd, min(limit, 1 << 20))):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def _effective_uid(pid: Pid) -> int | None:
    """The second number of `Uid:` in proc(5) status; None when the process is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read(_STATUS_LIMIT_BYTES).split(b"\n")
        return next((int(line.split()[2]) for line in lines if line.startswith(b"Uid:")), None)
    except (OSError, ValueError, IndexError):
        return None
