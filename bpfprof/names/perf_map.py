"""Names that a process gives to code it made at run time: /tmp/perf-PID.map in, a table of symbols out.

Format: tools/perf/Documentation/jit-interface.txt (Linux 6.1): lines of `START SIZE symbolname`, in hexadecimal.
"""

from __future__ import annotations

import contextlib
import os
from typing import BinaryIO

import numpy as np

from bpfprof import array_types as npt
from bpfprof.elf.symbols.table import SYMBOL_DTYPE, SymbolTable
from bpfprof.model.ids import Pid, Tid
from bpfprof.names.columns import hex_values, line_columns
from bpfprof.names.symbols import SymbolNames
from bpfprof.proc.living import living
from bpfprof.proc.maps import open_below
from bpfprof.proc.tasks import thread_status

_MAP_LIMIT_BYTES = 32 << 20
_LINE_LIMIT = 1 << 19
_KEPT_MAPS = 4  # of up to 60 MB each in memory


class PerfMaps:
    """Of processes. A file is parsed once until it changes, also when it is the map of several of them."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], SymbolNames] = {}  # by what tells files apart; used last comes last

    def names_of(self, pid: Pid) -> SymbolNames:
        """From the process's own /tmp, if it is a regular file that belongs to the process's user; else no symbols."""
        status = thread_status(pid, Tid(pid))
        if status is not None:
            with contextlib.suppress(OSError):
                name = f"/tmp/perf-{status.namespace_tids[-1]}.map"
                fd = open_below(pid, f"/proc/{living(pid)}/root", name, follow_last=False)
                with os.fdopen(fd, "rb") as file:
                    found = os.fstat(fd)
                    if found.st_uid == status.uid:
                        return self._names(file, found)
        return SymbolNames(parse_perf_map(b""))

    def _names(self, file: BinaryIO, found: os.stat_result) -> SymbolNames:
        key = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        names = self._known.pop(key, None)
        if names is None:
            names = SymbolNames(parse_perf_map(file.read(min(found.st_size, _MAP_LIMIT_BYTES + 1))))
        self._known[key] = names
        for old in list(self._known)[:-_KEPT_MAPS]:
            del self._known[old]
        return names


def parse_perf_map(data: bytes) -> SymbolTable:
    """At most 32 MiB and 524,288 lines of it. A later line replaces an earlier one of the same start."""
    if len(data) > _MAP_LIMIT_BYTES:
        data = data[: data.rfind(b"\n", 0, _MAP_LIMIT_BYTES) + 1]
    parts, room = [np.zeros(0, SYMBOL_DTYPE)], _LINE_LIMIT
    for lines in line_columns(data):
        parts.append(_symbols(data, lines[:room]))
        room -= len(lines)
        if room <= 0:
            break
    symbols = np.concatenate(parts)[::-1]
    symbols = symbols[np.unique(symbols["start"], return_index=True)[1]]
    text = data.replace(b"\n", b"\0")
    return SymbolTable(symbols, (lambda offset, size: text[offset : offset + size],))


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
