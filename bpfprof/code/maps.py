"""Which file an address of a process belongs to: /proc/PID/maps in, the kernel side's mappings and locations out."""

from __future__ import annotations

import bisect
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import field

import numpy as np

from bpfprof.abi.dtypes import MAPPING_DTYPE
from bpfprof.code.background import URGENT
from bpfprof.code.callers import callers
from bpfprof.code.files import FIRST_S, CodeFile, CodeFiles, FileKind
from bpfprof.code.jit_code import JitCode, Row
from bpfprof.dataclass import dataclass
from bpfprof.errors import TargetError
from bpfprof.kernel.mapping_events import MappingEvent
from bpfprof.kernel.tables import Tables
from bpfprof.kernel.unwind_memory import MAX_MAPPINGS, UnwindMemory, UnwindMemoryFull
from bpfprof.model.ids import Pid
from bpfprof.model.samples import NO_FILE
from bpfprof.proc.maps import Mapping, read_executable_maps
from bpfprof.unwind.interpret import Rule

Location = tuple[int, int]  # (number of the file, address in it)
_KERNEL_HALF = 1 << 63  # [vsyscall] is there
_MASK64 = (1 << 64) - 1
_REPLACED_KEPT_NS = 2_000_000_000
# For so many times as long as functions were read none are; where a program begins many are wanted at once.
_FIRST_REST, _REST = 1, 20
_CHECK_S = 0.5  # how long a function may have other code than its rules are of, where no mapping tells
# Earlier ones of a process, so many and so long: stacks are some tenths of a second old, on a busy machine seconds.
_KEPT_MAPS, _EARLIER_KEPT_NS = 8, 10_000_000_000


@dataclass
class CodeMap:
    """The executable mappings of one address space at one time, by address; processes born by fork share it.

    `index` is that of the kernel side's copy, `generation` what its searches are remembered by.
    """

    rows: list[Row]
    starts: list[int]
    index: int
    generation: int  # no other one ever has it
    from_ns: int = 0  # CLOCK_MONOTONIC: since when it is so
    has_memory: bool = False  # some of no file
    user_count: int = 0
    known: dict[int, int] = field(default_factory=dict)  # address -> whatever the caller numbers it
    rules: dict[int, Rule] = field(default_factory=dict)  # by address, those that were asked for
    rules_by_sp: dict[int, Rule | None] = field(default_factory=dict)  # the same of those by rsp where rbp is not known

    def locate(self, address: int) -> Location:
        """Where an address is; (NO_FILE, address) when it is in no mapping."""
        position = bisect.bisect_right(self.starts, address) - 1
        if position < 0:
            return NO_FILE, address
        _, end, bias, number = self.rows[position]
        return (number, address - bias) if address < end else (NO_FILE, address)


@dataclass
class NativeCode:
    """The code maps of all processes that have one."""

    files: CodeFiles
    memory: UnwindMemory
    map_of: dict[Pid, CodeMap] = field(default_factory=dict)
    cut_count: int = 0  # mappings beyond MAX_MAPPINGS
    # (process, generation of its mappings before) -> when other code came to their addresses (and those before)
    replaced: dict[tuple[Pid, int], int] = field(default_factory=dict)
    mapped: dict[Pid, list[MappingEvent]] = field(default_factory=dict)  # since its mappings were read last
    _generation: int = 0
    _jit: JitCode = field(init=False)
    _wanting: set[Pid] = field(default_factory=set)
    _checked_s: float = 0.0
    _looked_ns: dict[Pid, int] = field(default_factory=dict)  # before the mappings were read last
    _earlier: dict[Pid, deque[CodeMap]] = field(default_factory=dict)
    _short: set[Pid] = field(default_factory=set)  # some of whose stacks ended in functions that nobody had read
    _is_reading: bool = False
    _next_read_s: float = 0.0
    _met_count: int = 0  # addresses of functions that were not read yet

    def __post_init__(self) -> None:
        self._jit = JitCode(self.files)

    @classmethod
    def start(cls, tables: Tables, table_memory_bytes: int) -> NativeCode:
        """Over the kernel side's tables, which get so much memory; `close()` ends what it started."""
        memory = UnwindMemory(tables, table_memory_bytes)
        return cls(CodeFiles.start(memory), memory)

    def look_at(self, pid: Pid, from_ns: int = 0, mapped: Sequence[MappingEvent] = ()) -> bool:
        """Reads the mappings of a process; true when they are others than before, which they are since from_ns.

        So they are, too, when by `mapped` another file was at the place of one of them meanwhile, and is not any more.
        """
        since_ns, self._looked_ns[pid] = self._looked_ns.get(pid, 0), time.monotonic_ns()
        try:
            mappings, count = read_executable_maps(pid, MAX_MAPPINGS)
        except TargetError:
            return False
        in_user_half = (mapping for mapping in mappings if mapping.start < _KERNEL_HALF)
        rows = [row for mapping in in_user_half if (row := self._row(pid, mapping)) is not None]
        rows = self._jit.refine(pid, rows)
        self.cut_count += max(0, count - MAX_MAPPINGS, len(rows) - MAX_MAPPINGS)
        rows = rows[:MAX_MAPPINGS]
        old = self.map_of.get(pid)
        was_other = old is not None and any(self._is_other(old, event) for event in mapped if event.time_ns > since_ns)
        if old is not None and old.rows == rows and not was_other:
            return False
        array = np.array([(start, end, bias & _MASK64, number, 0) for start, end, bias, number in rows], MAPPING_DTYPE)
        try:
            index = self.memory.add_mappings(array)
        except UnwindMemoryFull:
            return False
        if old is not None:
            from_ns = from_ns or time.monotonic_ns()
            if was_other or not self._with_rules(old) <= set(rows):
                self.replaced[pid, old.generation] = from_ns
        self._generation += 1
        has_memory = any(self.files.files[row[3]].kind is FileKind.MEMORY for row in rows)
        self._set(pid, CodeMap(rows, [row[0] for row in rows], index, self._generation, from_ns, has_memory))
        return True

    def look_again(self, pid: Pid) -> bool:
        """As look_at(), for what it has mapped since; they are others since the first of that."""
        mapped = self.mapped.pop(pid, [])
        return self.look_at(pid, min((event.time_ns for event in mapped), default=0), mapped)

    def is_late(self, pid: Pid, address: int) -> bool:
        """Whether an address that was in no known mapping is in one of a file now, or may be when they are read again.

        Of a process that makes code it is most likely that, of which there is more in each moment.
        """
        code_map = self.map_of.get(pid)
        if code_map is None:
            return False
        number, _ = code_map.locate(address)
        if number == NO_FILE:
            return pid in self.mapped and not code_map.has_memory
        return self.files.files[number].kind is not FileKind.MEMORY

    def is_made(self, code_map: CodeMap, address: int) -> bool:
        """Whether code was made at this address that has no rules, or is not mapped as far as is known."""
        number, _ = code_map.locate(address)
        return number == NO_FILE or self._is_bare(number)

    def _is_bare(self, number: int) -> bool:
        """Whether a file is memory without rules, for which it is no matter what code is there."""
        file = self.files.files[number]
        return file.kind is FileKind.MEMORY and file.image is None

    def _with_rules(self, code_map: CodeMap) -> set[Row]:
        return {row for row in code_map.rows if not self._is_bare(row[3])}

    def forget_replaced(self) -> None:
        """Of mappings that were replaced long ago: no stack by them is still to come."""
        now_ns = time.monotonic_ns()
        self.replaced = {key: at_ns for key, at_ns in self.replaced.items() if at_ns >= now_ns - _REPLACED_KEPT_NS}
        for pid, maps in list(self._earlier.items()):
            while maps and (maps[1] if len(maps) > 1 else self.map_of[pid]).from_ns < now_ns - _EARLIER_KEPT_NS:
                maps.popleft()
            if not maps:
                del self._earlier[pid]

    def share(self, child: Pid, parent: Pid) -> None:
        """A process was forked: its memory is a copy of its parent's."""
        if parent in self.map_of:
            self._set(child, self.map_of[parent])

    def forget(self, pid: Pid, keep_earlier: bool = False) -> None:
        """A process is gone, or runs another program."""
        if not keep_earlier:
            self._earlier.pop(pid, None)
            self.mapped.pop(pid, None)
            self._looked_ns.pop(pid, None)
            self._jit.forget(pid)
            self.files.forget_memory(pid)
        old = self.map_of.pop(pid, None)
        if old is not None:
            old.user_count -= 1
            if old.user_count == 0:
                self.memory.release_mappings(old.index, len(old.rows))

    def hurry(self, pid: Pid, address: int) -> None:
        """A stack ended at this address because the table of its file does not have it yet."""
        if pid in self.map_of:
            number, found = self.map_of[pid].locate(address)
            if number != NO_FILE:
                self.files.hurry(number, found)
                self._short.add(pid)

    def read_wanted(self) -> None:
        """Has functions read in which stacks ended, and with them their callers; not all the time."""
        if not self._short or self._is_reading or time.monotonic() < self._next_read_s:
            return
        pids, self._short, self._is_reading = self._short, set(), True

        def read() -> None:
            begin_s, before, met = self.files.read_s, -1, 0
            while met != before:  # who is known calls others soon
                before, met = met, max(map(self.meet, pids))
                self.files.read_wanted()
                if self.files.read_s > FIRST_S:
                    break
            rest = _FIRST_REST if self.files.read_s < FIRST_S else _REST
            self._next_read_s = time.monotonic() + rest * (self.files.read_s - begin_s)
            self._is_reading = False

        self.files.background.add(URGENT, read)

    def meet(self, pid: Pid) -> int:
        """Meets the files that the stacks of a process lead through, and wants the functions of large ones.

        How many were wanted so far.
        """
        code_map, files = self.map_of.get(pid), self.files.files
        rows = [row for row in code_map.rows if _may_lack(files[row[3]])] if code_map else []
        for number, addresses in callers(pid, rows).items() if rows else ():
            if not files[number].is_ready:
                self.files.meet(number)
            self._met_count += self.files.want(number, addresses)
        return self._met_count

    def want(self, pid: Pid, addresses: Iterable[int]) -> None:
        """A stack with these addresses ended because one in memory was left by a wrong frame pointer."""
        code_map = self.map_of.get(pid)
        if code_map is None or not code_map.has_memory:
            return
        for address in addresses:
            number, _ = code_map.locate(address)
            if number != NO_FILE and self._is_bare(number) and self._jit.want(pid, address):
                self._wanting.add(pid)

    def take_wanting(self) -> set[Pid]:
        """Processes whose mappings are to be read again, for functions in memory."""
        wanting, self._wanting, now_s = self._wanting, set(), time.monotonic()
        if now_s > self._checked_s + _CHECK_S:
            self._checked_s = now_s
            wanting |= self._jit.with_others()
        return wanting

    def at(self, pid: Pid, time_ns: int) -> CodeMap | None:
        """The code map of a process at a time."""
        code_map = self.map_of.get(pid)
        if code_map is None or code_map.from_ns <= time_ns:
            return code_map
        earlier = [old for old in self._earlier.get(pid, ()) if old.from_ns <= time_ns]
        return earlier[-1] if earlier else code_map

    def of_generation(self, pid: Pid, generation: int) -> CodeMap | None:
        """The code map that the kernel side knows by this number; None when it is too old."""
        code_map = self.map_of.get(pid)
        if code_map is not None and code_map.generation == generation:
            return code_map
        return next((old for old in self._earlier.get(pid, ()) if old.generation == generation), None)

    def _is_other(self, code_map: CodeMap, event: MappingEvent) -> bool:
        """Whether what was mapped is not the file that this map has there; where it has none, it is not."""
        number, _ = code_map.locate(event.start)
        return number != NO_FILE and event.is_file and not self.files.is_inode(number, event.inode)

    def _set(self, pid: Pid, code_map: CodeMap) -> None:
        if pid in self.map_of:
            self._earlier.setdefault(pid, deque(maxlen=_KEPT_MAPS)).append(self.map_of[pid])
        self.forget(pid, keep_earlier=True)
        code_map.user_count += 1
        self.map_of[pid] = code_map

    def _row(self, pid: Pid, mapping: Mapping) -> Row | None:
        file = self.files.of_mapping(pid, mapping)
        if file is None:
            return None
        bias: int | None = None
        if file.kind == FileKind.MEMORY:
            bias = 0
        elif file.image is not None:
            bias = file.image.bias_of(mapping.start, mapping.offset, mapping.permissions)
        if bias is None:  # addresses in a file that is no ELF file are its offsets
            bias = mapping.start - mapping.offset
        return mapping.start, mapping.end, bias, file.number


def _may_lack(file: CodeFile) -> bool:
    """Whether some functions of it are not in its table."""
    return file.on_demand is not None or not file.is_ready
