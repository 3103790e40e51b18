"""Names that a process gives to code it made at run time: /tmp/perf-PID.map in, a table of symbols out.

Format: tools/perf/Documentation/jit-interface.txt (Linux 6.1): lines of `START SIZE symbolname`, in hexadecimal.
"""

from __future__ import annotations

import contextlib
import os

import numpy as np

from bpfprof import array_types as npt
from bpfprof.elf.symbols.table import SYMBOL_DTYPE, SymbolTable
from bpfprof.model.ids import Pid, Tid
from bpfprof.names.columns import hex_values, line_columns
from bpfprof.proc.maps import open_below
from bpfprof.proc.tasks import thread_status

_MAP_LIMIT_BYTES = 32 << 20
_LINE_LIMIT = 1 << 19


def read_perf_map(pid: Pid) -> SymbolTable:
    """From the process's own /tmp, if it is a regular file that belongs to the process's user; else no symbols."""
    status, data = thread_status(pid, Tid(pid)), b""
    if status is not None:
        with contextlib.suppress(OSError):
            name = f"/tmp/perf-{status.namespace_tids[-1]}.map"
            fd = open_below(pid, f"/proc/{pid}/root", name, follow_last=False)
            with os.fdopen(fd, "rb") as file:
                found = os.fstat(fd)
                if found.st_uid == status.uid:
                    data = file.read(min(found.st_size, _MAP_LIMIT_BYTES + 1))
    return parse_perf_map(data)


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
