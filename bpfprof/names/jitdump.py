"""Names that a process gives to code it made, with the times from which they hold: jitdump files in, names out.

Format: tools/perf/Documentation/jitdump-specification.txt (Linux 6.1). V8 writes one (`node --perf-prof`), CPython 3.13
and later (`-X perf_jit`), and LLVM's listener for perf. The process maps the file executable, as a mark for profilers.

It is a stranger's file that grows. It is read from where the last look ended, and bounded in what it can cost.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import field

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.names.symbols import demangle
from bpfprof.proc.text import with_controls_replaced

IS_JITDUMP = re.compile(r"/jit-\d+\.dump\Z").search  # what perf goes by: jit_detect(), tools/perf/util/jitdump.c
_MAGIC, _VERSION = 0x4A695444, 1
_HEADER = struct.Struct("<IIIIIIQQ")  # magic, version, total_size, elf_mach, pad1, pid, timestamp, flags
_ARCH_TIMESTAMP = 1  # in flags: another clock than CLOCK_MONOTONIC
_RECORD = struct.Struct("<IIQ")  # id, total_size, timestamp
_CODE_LOAD, _CODE_MOVE = 0, 1
_LOAD = struct.Struct("<16xIIQQQQ")  # pid, tid, vma, code_addr, code_size, code_index; then the name and the code
_MOVE = struct.Struct("<16xIIQQQQQ")  # pid, tid, vma, old_code_addr, new_code_addr, code_size, code_index
_LONGEST_FIXED = max(_LOAD.size, _MOVE.size)
_HEADER_LIMIT_BYTES = 4096
_RECORD_LIMIT = 1 << 19  # of one file; each takes a microsecond or two
_SIZE_LIMIT_BYTES = 4 << 30  # of what is looked through; code is skipped
_READ_BYTES = 16 << 10  # at a time: code between two records is skipped
_NAME_LIMIT_BYTES = 4096
_DUMP_LIMIT = 4  # of one process: it and those it was forked from
_CODE_DTYPE = np.dtype([("start", "<u8"), ("end", "<u8"), ("time_ns", "<u8"), ("name_at", "<u8")])

DatedName = tuple[int, int, str]  # number that was asked for, CLOCK_MONOTONIC from which it holds (0: ever), name


class JitDump:
    """One file. Its codes are in the order in which they were made."""

    def __init__(self, fd: int) -> None:
        """Takes over a descriptor of a regular file."""
        self.fd = fd
        self.codes: npt.NDArray[np.void] = np.zeros(0, _CODE_DTYPE)
        self.problem = ""
        self._position = 0
        self._record_count = 0
        self._has_times = True
        self._name_of_index: dict[int, int] = {}

    def read(self) -> None:
        """What was written since the last call, as far as its records are whole."""
        rows = list(self._new_codes()) if not self.problem else []
        if rows:
            self.codes = np.concatenate((self.codes, np.array(rows, _CODE_DTYPE)))

    def name(self, offset: int) -> str:
        """The name that is written at this place of the file."""
        return os.pread(self.fd, _NAME_LIMIT_BYTES, offset).partition(b"\0")[0].decode("utf-8", "replace")

    def _new_codes(self) -> Iterator[tuple[int, int, int, int]]:
        size = os.fstat(self.fd).st_size
        if not self._position and not self._begin():
            return
        window, window_at = b"", 0
        while self._position + _RECORD.size <= size:
            at = self._position - window_at
            if at + _LONGEST_FIXED > len(window) and window_at + len(window) < size:
                window, window_at, at = os.pread(self.fd, _READ_BYTES, self._position), self._position, 0
            if at + _RECORD.size > len(window):
                return  # it was made shorter meanwhile
            kind, length, time_ns = _RECORD.unpack_from(window, at)
            if length < _RECORD.size:
                self.problem = "its jitdump is damaged"
                return
            if self._position + length > size:
                return
            self._record_count += 1
            if self._record_count > _RECORD_LIMIT or self._position > _SIZE_LIMIT_BYTES:
                self.problem = "its jitdump is too long to be read to its end"
                return
            code = self._code(kind, window[at : at + min(length, _LONGEST_FIXED)])
            if code is not None and code[1] > code[0]:
                yield code[0], code[1], min(time_ns, (1 << 63) - 1) * self._has_times, code[2]
            self._position += length

    def _begin(self) -> bool:
        header = os.pread(self.fd, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return False
        magic, version, size, *_, flags = _HEADER.unpack(header)
        if (magic, version) != (_MAGIC, _VERSION) or not _HEADER.size <= size <= _HEADER_LIMIT_BYTES:
            self.problem = "its jitdump is not of a version that is known here"
            return False
        self._position, self._has_times = size, not flags & _ARCH_TIMESTAMP
        return True

    def _code(self, kind: int, record: bytes) -> tuple[int, int, int] | None:
        """Start, end and place of the name of code that is loaded or moved."""
        if kind == _CODE_LOAD and len(record) >= _LOAD.size:
            _, _, start, _, size, index = _LOAD.unpack_from(record)
            name_at = self._name_of_index[index] = self._position + _LOAD.size
        elif kind == _CODE_MOVE and len(record) >= _MOVE.size:
            _, _, start, _, _, size, index = _MOVE.unpack_from(record)
            name_at = self._name_of_index.get(index, 0)
        else:
            return None
        return (start, min(start + size, (1 << 64) - 1), name_at) if name_at else None


@dataclass
class JitDumps:
    """Those of one process, and what was asked of them: code that comes to an address later may rename it."""

    dumps: list[JitDump] = field(default_factory=list)
    _asked: list[tuple[int, int]] = field(default_factory=list)
    _last_name: dict[int, str] = field(default_factory=dict)
    _is_over: bool = False

    def add(self, fd: int) -> None:
        """Takes over a descriptor of a regular file; what is no new jitdump is closed."""
        status = os.fstat(fd)
        is_known = any(os.path.samestat(status, os.fstat(dump.fd)) for dump in self.dumps)
        if is_known or len(self.dumps) >= _DUMP_LIMIT:
            os.close(fd)
        else:
            self.dumps.append(JitDump(fd))

    @property
    def problem(self) -> str:
        """Why names may be missing."""
        return next((dump.problem for dump in self.dumps if dump.problem), "")

    def has_named(self, number: int, name: str) -> None:
        """The address with this number has its first name from elsewhere."""
        if not self._is_over:
            self._last_name[number] = name

    def new_names(self, asked: Iterable[tuple[int, int]]) -> list[DatedName]:
        """Of these (number, address) all names, and those that came to the ones asked before; by time for each.

        The first name holds ever: some write down code only when it has run.
        """
        before, new = list(self._asked), list(asked)
        self._asked += new
        found: list[DatedName] = []
        for dump in list(self.dumps):
            known_count = len(dump.codes)
            dump.read()
            for addresses, codes in ((before, dump.codes[known_count:]), (new, dump.codes)):
                for number, code in _covering(addresses, codes):
                    name = with_controls_replaced(demangle(dump.name(int(code["name_at"]))))
                    from_ns = int(code["time_ns"]) if number in self._last_name else 0
                    if name and self._last_name.get(number) != name and (from_ns or number not in self._last_name):
                        found.append((number, from_ns, name))
                        self._last_name[number] = name
        if self._is_over:
            self.end()
        return found

    def end(self) -> None:
        """The process is gone: what is in its files is found once more, and what was asked is not remembered."""
        if not self.dumps or self._is_over:
            self._asked, self._last_name = [], {}
        self._is_over = True

    def close(self) -> None:
        """Closes the files."""
        while self.dumps:
            os.close(self.dumps.pop().fd)


def _covering(asked: Iterable[tuple[int, int]], codes: npt.NDArray[np.void]) -> Iterator[tuple[int, np.void]]:
    """(number, code) for each code that covers an address that was asked for, the earliest of an address first."""
    if not len(codes):
        return
    has_times = bool(codes["time_ns"].any())
    by_start = np.argsort(codes["start"], kind="stable")
    codes = codes[by_start]
    reach = np.maximum.accumulate(codes["end"])
    for number, address in asked:
        first = int(np.searchsorted(reach, np.uint64(address), side="right"))
        last = int(np.searchsorted(codes["start"], np.uint64(address), side="right"))
        inside = first + np.flatnonzero(codes["end"][first:last] > np.uint64(address))
        if len(inside):
            order = inside[np.argsort(codes["time_ns"][inside] if has_times else by_start[inside], kind="stable")]
            for place in order.tolist() if has_times else order[-1:].tolist():
                yield number, codes[place]
