"""Files, native frames and their names on the way into the recording.

Names are looked up before the recording ends, so that a report needs neither the target nor its files.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.code.addresses import NativeTable, kernel_addresses
from bpfprof.code.files import KERNEL_FILE, CodeFile, FileKind
from bpfprof.code.maps import NativeCode
from bpfprof.elf.image import ElfImage
from bpfprof.elf.symbols.debug_files import find_debug_file
from bpfprof.model.samples import MEMORY, NAME_DTYPE, NATIVE_EXACT, NO_FILE, TRAMPOLINES
from bpfprof.names.elf_names import ElfNames, Name
from bpfprof.names.kernel_symbols import read_kernel_symbols
from bpfprof.names.perf_map import PerfMaps
from bpfprof.names.symbols import SymbolNames
from bpfprof.proc.maps import open_below
from bpfprof.recording.tables import RecordedFile, table_row
from bpfprof.recording.writer import Sink

_LOOK_S = 0.05  # so often it is asked whether it is over
# Functions of files wait for their names, which take time that the target may need, until so many wait or the first has
# so long: 4,096 take some 0.4 s, and so do the symbols of 64 files.
_MOST_WAITING, _AS_MANY_AS_A_FILE, _LONGEST_S = 4096, 64, 20.0
_NAMES_KEPT_S = 300.0  # symbol tables that are not used: read again they take some tenths of a second
_OF_MEMORY = MEMORY, TRAMPOLINES
_Row = tuple[int, int, int, int, int, int]  # of NAME_DTYPE


class Namer:
    """Writes what the recording does not have yet: addresses as they are met, names as they are found."""

    def __init__(self, code: NativeCode, with_lines: bool, symbol_memory_bytes: int) -> None:
        self.code = code
        self.natives = NativeTable(code)
        self._with_lines = with_lines
        self._written_count = 0
        # Addresses whose names were not asked for, by number of the file, and since when there are any.
        self._waiting: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._waiting_since_s = 0.0
        # Only used in the background, but for what it has found. By number of the file, with when they were used last,
        # time.monotonic(); used last comes last.
        self._names: dict[int, tuple[ElfNames, ElfImage | None, float]] = {}
        self._names_limit_bytes = symbol_memory_bytes
        self._kernel: SymbolNames | None = None
        self._perf_maps = PerfMaps()
        self._found: deque[tuple[list[str], list[_Row]]] = deque()

    def write_new(self, sink: Sink) -> None:
        """Files and addresses, before the stacks that refer to them; and names that were found meanwhile."""
        files = self.code.files.take_new()
        if files:
            sink.write("files", {"rows": [_file_row(file) for file in files]})
        rows = self.natives.take_new()
        if len(rows):
            sink.write("natives", arrays={"rows": rows})
            self._wait_for_names(rows)
        while self._found:
            texts, names = self._found.popleft()
            sink.write("names", {"texts": texts}, {"rows": np.array(names, NAME_DTYPE)})

    def ask(self, at_once: bool = True) -> None:
        """Has names looked up, in the background, of all addresses that were written.

        Without at_once those in files wait until they are many: files stay what they are.
        """
        at_once = at_once or self._is_due()
        for file in self.code.files.files:
            may_change = file.image is None or file.path in _OF_MEMORY or file.dumps.dumps
            if not at_once and not may_change:
                continue
            new = self._waiting.pop(file.number, [])
            if new or file.dumps.dumps:  # those may name what was asked before
                self.code.files.naming.add(0, partial(self._look_up, file, new))

    def _wait_for_names(self, rows: npt.NDArray[np.void]) -> None:
        if not self._waiting:
            self._waiting_since_s = time.monotonic()
        for number, (address, place, flags) in enumerate(rows.tolist(), self._written_count + 1):
            if place != NO_FILE:
                self._waiting[place].append((number, address if flags & NATIVE_EXACT else address - 1))
        self._written_count += len(rows)

    def _is_due(self) -> bool:
        count = sum(map(len, self._waiting.values()))
        count += _AS_MANY_AS_A_FILE * sum(number not in self._names for number in self._waiting)
        return count >= _MOST_WAITING or time.monotonic() > self._waiting_since_s + _LONGEST_S

    def finish(self, sink: Sink, is_over: Callable[[], bool]) -> None:
        """Writes the names that are still missing, as far as they are found before it is over."""
        self.ask()
        while not self.code.files.naming.wait(_LOOK_S) and not is_over():
            pass
        self.write_new(sink)
        noted = [file for file in self.code.files.files if file.note]
        if noted:
            sink.write("files", {"rows": [_file_row(file) for file in noted]})

    def _look_up(self, file: CodeFile, asked: list[tuple[int, int]]) -> None:
        """A stranger's file that cannot be read costs its names."""
        texts: dict[str, int] = {"": 0}
        names: list[_Row] = []
        try:
            asked = [(number, address + file.bias) for number, address in asked]
            dated = file.dumps.new_names(asked) if file.kind is FileKind.MEMORY else []
            named = {number for number, _, _ in dated}
            asked = [(number, address) for number, address in asked if number not in named]
            answers = self._resolve(file, [address for _, address in asked]) if asked else []
        except Exception as error:  # a bug in a decoder
            file.note = file.note or f"no names: internal error: {type(error).__name__}: {error}"
            return
        for native, since_ns, function in dated:
            names.append((native, texts.setdefault(function, len(texts)), 0, 0, 0, since_ns))
        for (native, _), found in zip(asked, answers):
            for function, file_name, line, flags in found:
                function_place = texts.setdefault(function, len(texts))
                names.append((native, function_place, texts.setdefault(file_name, len(texts)), line, flags, 0))
                if file.kind is FileKind.MEMORY:
                    file.dumps.has_named(native, function)
        if names:
            self._found.append((list(texts), names))

    def _resolve(self, file: CodeFile, addresses: list[int]) -> Sequence[Sequence[Name]]:
        """For each address the functions it is in, innermost first."""
        if file.image is not None and file.path not in _OF_MEMORY:
            found = self._names_of(file, file.image).resolve(addresses)
            file.image.forget_sections()
            return found
        array = np.array(addresses, np.uint64)
        if file.number == KERNEL_FILE:
            self._kernel = self._kernel or SymbolNames(read_kernel_symbols())
            names = self._kernel.resolve(kernel_addresses(array))
        else:
            names = self._perf_maps.names_of(file.pid).resolve(array)
        return [[(name, "", 0, 0)] if name else [] for name in names]

    def _names_of(self, file: CodeFile, image: ElfImage) -> ElfNames:
        """Those of other files go, the longest unused first, where all take more memory than they may, or after a time:
        most addresses of a file are met soon."""
        now_s, known = time.monotonic(), self._names.pop(file.number, None)
        if known is None:
            debug = find_debug_file(image, file.path, file.root, partial(open_below, file.pid))
            symbols = file.on_demand.symbols if file.on_demand is not None else None
            known = ElfNames(image, debug, self._with_lines, symbols), debug, now_s
        size = sum(names.size_bytes for names, *_ in (*self._names.values(), known))
        for number, (names, debug, used_s) in list(self._names.items()):
            if size > self._names_limit_bytes or used_s < now_s - _NAMES_KEPT_S:
                del self._names[number]
                size -= names.size_bytes
                if debug is not None:
                    debug.close()
        self._names[file.number] = known[0], known[1], now_s
        return known[0]


def _file_row(file: CodeFile) -> dict[str, Any]:
    build_id = file.image.build_id if file.image is not None else ""
    return table_row(file.number, RecordedFile(file.kind.value, file.path, build_id, file.note))
