"""Source lines of one ELF file: ELF addresses in; file, line and inlined functions out, from DWARF 2 to 5.

Only the units that hold asked addresses are read. Not followed: DWARF that lies in other files (.dwo, dwz -m).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bpfprof.elf.debug_sections import DebugSections, ReadGuard, error_text
from bpfprof.elf.image import ElfImage
from bpfprof.elf.inlined_functions import Chain, CodeEntry, Unit, integer
from bpfprof.elf.line_programs import STRING_FORMS, LineProgram, ReadString, Row
from bpfprof.elf.unit_index import UnitIndex

LOOK_UP_LIMIT_S = 5.0  # of CPU time
LINE_PROGRAM_LIMIT_BYTES = 16 << 20
_HEADER_READS = 1000
_PROBLEM_LIMIT = 20
_LINE_LIMIT = 1 << 32
_STRING_BYTES = 4096
NAMES_LIMIT_BYTES = 32 << 20  # of all functions that one reader has told of


@dataclass(frozen=True, slots=True)
class SourceLine:
    """`function` is the linkage name, mangled, if there is one, else the name; "" when only the line is known.

    `file` is joined with its directories as the compiler wrote them, "" when it is unknown. A line of 0 is unknown too,
    or that of code which no line of the source stands for.
    """

    function: str
    file: str
    line: int
    is_inlined: bool


Answer = tuple[SourceLine, ...]


class LineReader:
    """Not for several threads at once. Keep both files open while it is asked."""

    def __init__(self, image: ElfImage, debug: ElfImage | None = None, limit_s: float = LOOK_UP_LIMIT_S) -> None:
        """`debug` is the separate debug file of `image`: whichever has .debug_info is read, when first asked.

        `limit_s` is the CPU time of one look-up.
        """
        self._files = [file for file in (image, debug) if file is not None]
        self._limit_s = limit_s
        self._guard = ReadGuard()
        self._sections: DebugSections | None = None
        self._index: UnitIndex | None = None
        self._is_open = False
        self._answers: dict[int, Answer] = {}
        self._problems: dict[str, None] = {}
        self._name_room = NAMES_LIMIT_BYTES

    @property
    def problems(self) -> tuple[str, ...]:
        """Why there is nothing, or less than there could be; at most 20."""
        return tuple(self._problems)

    def look_up(self, addresses: Sequence[int]) -> list[Answer]:
        """For each ELF address what is inlined there, innermost first, and the function last; () when unknown.

        Never fails: what is missing is in `problems`. Addresses that there was no time for are () too, and are read
        when they are asked again.
        """
        self._guard.start(self._limit_s)
        wanted = sorted({int(address) for address in addresses} - self._answers.keys())
        if wanted and not self._is_open:
            self._open()
        if wanted and self._sections is not None and self._index is not None:
            try:
                self._read(self._sections, self._index, wanted)
            except Exception as error:
                self._fail("DWARF", error)
            self._sections.forget()
        if self._guard.is_late:
            self._report(f"not all in the {self._limit_s:g} s of CPU time that one look-up may take")
        return [self._answers.get(int(address), ()) for address in addresses]

    def _open(self) -> None:
        for file in self._files:
            if file.section(".debug_info") is not None:
                try:
                    self._sections = DebugSections(file, self._guard, self._report)
                    self._index = UnitIndex(self._sections, self._guard, self._report)
                except Exception as error:
                    self._fail("debug sections", error)
                self._is_open = not self._guard.is_late
                return
        self._is_open = True
        is_old = any(file.section(".zdebug_info") is not None for file in self._files)
        self._report("debug sections compressed in the old way (.zdebug)" if is_old else "no .debug_info section")

    def _report(self, problem: str) -> None:
        if len(self._problems) < _PROBLEM_LIMIT:
            self._problems.setdefault(problem)

    def _fail(self, what: str, error: Exception) -> None:
        if not self._guard.is_late:
            self._report(f"{what}: {error_text(error)}")

    def _read(self, sections: DebugSections, index: UnitIndex, addresses: list[int]) -> None:
        """Put what can be found into the answers. `addresses` ascend."""
        by_unit: defaultdict[int, list[int]] = defaultdict(list)
        unit_of = index.find(addresses)
        for address, offset in unit_of.items():
            by_unit[offset].append(address)
        rest = [address for address in addresses if address not in unit_of]
        # Those with the most addresses first, in case there is no time for all.
        batches = sorted(by_unit.items(), key=lambda item: -len(item[1]))
        for offset, asked in batches:
            self._answers |= self._read_unit(sections, offset, sorted(asked))
        for offset in index.units_without_ranges:
            if rest:
                found = self._read_unit(sections, offset, rest)
                self._answers |= {address: answer for address, answer in found.items() if answer}
                rest = [address for address in rest if not found.get(address)]
        if not self._guard.is_late:
            self._answers.update(dict.fromkeys(rest, ()))

    def _read_unit(self, sections: DebugSections, offset: int, addresses: list[int]) -> dict[int, Answer]:
        """Of those addresses that there was time for."""
        program: LineProgram | None = None
        rows: dict[int, Row] = {}
        chains: dict[int, tuple[int, Chain]] = {}
        where = f"unit at {offset:#x}"
        try:
            self._guard.check_time()
            self._guard.allow(_HEADER_READS)
            unit = Unit(sections.dwarf().get_CU_at(offset), self._guard)
        except Exception as error:
            self._fail(where, error)
            return {}
        try:
            program = _line_program(sections, unit.top.attributes)
            rows = program.rows_at(addresses, self._guard.check_time) if program else {}
        except Exception as error:
            self._fail(f"lines of {where}", error)
        try:
            unit.chains_at(addresses, chains)
        except Exception as error:
            self._fail(where, error)
        known: dict[tuple[Row | None, Chain], Answer] = {}
        answers: dict[int, Answer] = {}
        for address in addresses:
            key = rows.get(address), chains.get(address, (0, ()))[1]
            if key not in known:
                known[key] = self._answer(unit, program, *key)
            if self._guard.is_late:
                return answers
            answers[address] = known[key]
        if unit.has_foreign_names:
            self._report("names that lie in another file (.dwz) are not read")
        if not {"DW_AT_dwo_name", "DW_AT_GNU_dwo_name"}.isdisjoint(unit.top.attributes):
            self._report("DWARF that lies in other files (.dwo) is not read")
        return answers

    def _answer(self, unit: Unit, program: LineProgram | None, row: Row | None, chain: Chain) -> Answer:
        file, line = row or (-1, 0)
        if not chain:
            return () if row is None else (SourceLine("", self._path(program, file), line, False),)
        lines = []
        for depth, entry in reversed(list(enumerate(chain))):
            lines.append(SourceLine(self._name(unit, entry), self._path(program, file), line, depth > 0))
            file, line = entry.call_file, entry.call_line if entry.call_line < _LINE_LIMIT else 0
        return tuple(lines)

    def _path(self, program: LineProgram | None, file: int) -> str:
        try:
            return program.path(file) if program else ""
        except Exception as error:
            self._fail("name of a file", error)
            return ""

    def _name(self, unit: Unit, entry: CodeEntry) -> str:
        try:
            self._guard.check_time()
            name = unit.name_of(entry)
        except Exception as error:
            self._fail("name of a function", error)
            return ""
        self._name_room -= len(name)
        if self._name_room < 0:
            self._report("names of functions are too long")
            return ""
        return name


def _line_program(sections: DebugSections, top: dict[str, Any]) -> LineProgram | None:
    """That of a unit with these attributes. Raises what LineProgram raises."""
    if "DW_AT_stmt_list" not in top:
        return None
    offset = integer(top["DW_AT_stmt_list"])
    # Section 7.4: a length of 4 bytes, or 4 bytes of ones and a length of 8.
    head = sections.read("debug_line", offset, 12)
    if len(head) < 12:
        raise ValueError("there are none in .debug_line")
    is_long = head[:4] == b"\xff\xff\xff\xff"
    size = 12 + int.from_bytes(head[4:], "little") if is_long else 4 + int.from_bytes(head[:4], "little")
    if size > LINE_PROGRAM_LIMIT_BYTES:
        raise ValueError("a line program is too large")
    directory = getattr(top.get("DW_AT_comp_dir"), "value", b"")
    strings = {form: _string_reader(sections, name) for name, form in STRING_FORMS.items()}
    data = sections.read("debug_line", offset, size)
    return LineProgram(data, directory if isinstance(directory, bytes) else b"", strings)


def _string_reader(sections: DebugSections, name: str) -> ReadString:
    return lambda offset: sections.read(name, offset, _STRING_BYTES).partition(b"\0")[0]
