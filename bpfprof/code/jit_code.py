"""Which parts of a process's memory are objects of a just-in-time compiler: its mappings in, more of them out."""

from __future__ import annotations

import contextlib
from dataclasses import field

from bpfprof.code.files import CodeFiles, FileKind
from bpfprof.code.jit_objects import DESCRIPTOR, first_entry, list_entries, read_object
from bpfprof.code.made_functions import PAGE_BYTES, find_function
from bpfprof.code.trampolines import find_trampolines
from bpfprof.dataclass import dataclass
from bpfprof.errors import TargetError
from bpfprof.model.ids import Pid
from bpfprof.model.samples import MEMORY, TRAMPOLINES
from bpfprof.proc.memory import ProcessMemory

_LIMIT_BYTES = 64 << 20
_LOOK_LIMIT = 1000  # pages of a process that are looked at for functions: PyTorch's convolutions make some 100
_LOOKS_AT_ONCE, _LOOKS_AT_ONE = 8, 8  # of up to 50 ms, mostly 1; other code may come to a page
_ARENA_LIMIT = 64  # mappings of memory that are looked at for trampolines: as many as 1,000,000 functions have
Row = tuple[int, int, int, int]  # start, end, bias, number of the file


@dataclass
class JitCode:
    """The objects that were read stay known as long as their process lists them."""

    files: CodeFiles
    _descriptors: dict[int, int | None] = field(default_factory=dict)  # by number of the file: ELF address
    _first: dict[Pid, tuple[int, int]] = field(default_factory=dict)  # descriptor and first entry
    _bytes: dict[Pid, int] = field(default_factory=dict)  # of all files made for a process
    _objects: dict[Pid, dict[tuple[int, int, int], Row | None]] = field(default_factory=dict)
    _arenas: dict[Pid, dict[tuple[int, int], Row]] = field(default_factory=dict)  # of trampolines, by their mapping
    # Pages where a stack ended for want of a rule, and where; those without a function: what was there, how often.
    _wanted: dict[Pid, dict[int, int]] = field(default_factory=dict)
    _refused: dict[Pid, dict[int, tuple[bytes, int]]] = field(default_factory=dict)
    _functions: dict[Pid, dict[int, tuple[bytes, Row]]] = field(default_factory=dict)  # by address: code, and where

    def want(self, pid: Pid, address: int) -> bool:
        """A stack ended at this address, in memory without rules; true when it is to be looked at."""
        wanted, refused, page = self._wanted.setdefault(pid, {}), self._refused.get(pid, {}), address // PAGE_BYTES
        _, count = refused.get(page, (b"", 0))
        if count >= _LOOKS_AT_ONE or len(refused) >= _LOOK_LIMIT:
            return False
        wanted.setdefault(page, address)
        return True

    def with_others(self) -> set[Pid]:
        """Processes where a function that was found has other code now, or has gone."""
        found = set()
        for pid, known in self._functions.items():
            with contextlib.suppress(TargetError), ProcessMemory(pid) as memory:
                if any(memory.read(begin, len(code)) != code for begin, (code, _) in known.items()):
                    found.add(pid)
        return found

    def refine(self, pid: Pid, rows: list[Row]) -> list[Row]:
        """The same, with the objects in place of the memory where they lie."""
        is_memory = [self.files.files[row[3]].kind is FileKind.MEMORY for row in rows]
        if not any(is_memory):
            return rows
        made = [row for row, is_made in zip(rows, is_memory) if is_made]
        try:
            with ProcessMemory(pid) as memory:
                for descriptor in filter(None, map(self._descriptor, rows)):
                    self._read(pid, memory, descriptor)
                arenas = [self._trampolines(pid, memory, row) for row in made[:_ARENA_LIMIT]]
                self._find_functions(pid, memory, made)
        except TargetError:
            return rows
        functions = [row for _, row in self._functions.get(pid, {}).values()]
        found = sorted({row for row in (*self._objects.get(pid, {}).values(), *arenas, *functions) if row is not None})
        refined: list[Row] = []
        for row, is_made in zip(rows, is_memory):
            refined += _cut(row, found) if is_made else [row]
        return refined

    def forget(self, pid: Pid) -> None:
        """A process is gone, or runs another program."""
        self._first.pop(pid, None)
        self._bytes.pop(pid, None)
        self._objects.pop(pid, None)
        self._arenas.pop(pid, None)
        self._wanted.pop(pid, None)
        self._refused.pop(pid, None)
        self._functions.pop(pid, None)

    def _descriptor(self, row: Row) -> int | None:
        """Its address in the process, if this mapping's file has one."""
        file = self.files.files[row[3]]
        if file.image is None or file.kind is not FileKind.ELF:
            return None
        if file.number not in self._descriptors:
            symbol = file.image.find_symbol(DESCRIPTOR)
            self._descriptors[file.number] = None if symbol is None else int(symbol.address)
        address = self._descriptors[file.number]
        return None if address is None else address + row[2]

    def _read(self, pid: Pid, memory: ProcessMemory, descriptor: int) -> None:
        first = first_entry(memory, descriptor)
        if self._first.get(pid) == (descriptor, first):
            return
        self._first[pid] = descriptor, first
        before, now = self._objects.get(pid, {}), {}
        for entry in list_entries(memory, first):
            now[entry] = before[entry] if entry in before else self._row(pid, memory, *entry[1:])
        self._objects[pid] = now

    def _row(self, pid: Pid, memory: ProcessMemory, address: int, size: int) -> Row | None:
        found = read_object(memory, address, size) if self._bytes.get(pid, 0) < _LIMIT_BYTES else None
        self._bytes[pid] = self._bytes.get(pid, 0) + (len(found.content) if found else 0)
        file = self.files.of_jit_object(pid, found.content) if found else None
        return (found.start, found.end, found.bias, file.number) if found and file else None

    def _trampolines(self, pid: Pid, memory: ProcessMemory, row: Row) -> Row | None:
        """They are all there when their memory becomes executable, so one look is enough."""
        known = self._arenas.setdefault(pid, {})
        if row[:2] not in known:
            found = find_trampolines(memory, *row[:2])
            file = self.files.of_made_code(pid, found, TRAMPOLINES) if found else None
            if found is None or file is None:
                return None
            known[row[:2]] = found.start, found.end, found.bias, file.number
        return known[row[:2]]

    def _find_functions(self, pid: Pid, memory: ProcessMemory, made: list[Row]) -> None:
        """Those that stacks ended in; such as have other code now are forgotten."""
        known, wanted = self._functions.setdefault(pid, {}), self._wanted.get(pid, {})
        for begin, (code, _) in list(known.items()):
            if memory.read(begin, len(code)) != code:
                del known[begin]
        refused = self._refused.setdefault(pid, {})
        for page in list(wanted)[:_LOOKS_AT_ONCE]:
            address = wanted.pop(page)
            code, count = refused.get(page, (b"", 0))
            now = memory.read(page * PAGE_BYTES, PAGE_BYTES) or b""
            row = next((row for row in made if row[0] <= address < row[1]), None)
            found = find_function(memory, row[0], row[1], address) if row and code != now else None
            file = self.files.of_made_code(pid, found, MEMORY) if found else None
            if found is None or file is None:
                refused[page] = now, count + 1
                continue
            code = memory.read(found.start, found.end - found.start) or b""
            known[found.start] = code, (found.start, found.end, found.bias, file.number)


def _cut(row: Row, objects: list[Row]) -> list[Row]:
    """A mapping, with the objects that lie in it; one that overlaps another is left out."""
    at, end, bias, number = row
    parts: list[Row] = []
    for found in objects:
        if at <= found[0] and found[1] <= end:
            parts += [(at, found[0], bias, number)] if at < found[0] else []
            parts.append(found)
            at = found[1]
    return [*parts, (at, end, bias, number)] if at < end else parts
