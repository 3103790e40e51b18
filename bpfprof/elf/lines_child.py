"""The process that `lines` starts: an open ELF file and addresses in, source lines and inlined functions out.

    python -I -S lines_child.py FD CPU_SECONDS DIRECTORY_OF_ELFTOOLS <request >answers

A request is a JSON object: `filter` of seccomp in hex, and `addresses` that ascend, as all lists of addresses here.
Answers are JSON lists, one per line: [address, [[function, file, line, is inlined], ...]], innermost first, or [null,
problem]. pyelftools believes every count, so the process has limits of time and memory. It makes an object of each
step, which takes ten times as long, so the loops over entries of a unit and instructions of a line program are ours. Of
bpfprof nothing is imported: numpy would come with it.
Sections in comments are those of DWARF 5.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import struct
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Any

_LIMITS = {
    resource.RLIMIT_DATA: 1 << 30,  # bytes; pyelftools holds all debug sections of the file
    resource.RLIMIT_FSIZE: 32 << 20,  # of answers
}
_NAME_LIMIT_BYTES, _DEPTH_LIMIT, _LINE_LIMIT = 16 << 10, 64, 1 << 32
_NOBODY = 65534
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2  # <linux/prctl.h>, <linux/seccomp.h>
_ULEB, _STRING, _BLOCK, _BLOCK1, _BLOCK2, _BLOCK4 = -1, -2, -3, -4, -5, -7  # in place of a size
_SIZES = {  # of forms whose size pyelftools does not tell: section 7.5.6
    **dict.fromkeys(["sdata", "udata", "ref_udata", "strx", "addrx", "loclistx", "rnglistx"], _ULEB),
    **{"exprloc": _BLOCK, "block": _BLOCK, "block1": _BLOCK1, "block2": _BLOCK2, "block4": _BLOCK4},
    **{"string": _STRING, "implicit_const": 0},
}
_SCOPES = ("DW_TAG_subprogram", "DW_TAG_inlined_subroutine", "DW_TAG_lexical_block")
_EXTENDED, _COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE = range(5)  # section 7.22
_CONST_ADD_PC, _FIXED_ADVANCE_PC, _END_SEQUENCE, _SET_ADDRESS = 8, 9, 1, 2
Row = tuple[int, int, int]  # address, number of the file, line


class _Unit:
    """A compilation unit of pyelftools. Methods raise whatever pyelftools raises."""

    def __init__(self, cu: Any) -> None:
        self._cu, self._dwarf = cu, cu.dwarfinfo
        self._top = cu.get_top_DIE()
        self._layout = cache(self._read_layout)
        self._name, self._path = cache(self._read_name), cache(self._read_path)
        self._header: Any = {"version": 0}  # of the line program
        self._rows: dict[int, Row] = {}
        self._nestings: dict[int, tuple[Any, ...]] = {}  # the function, what is inlined in it, what is inlined in that

    def answers(self, asked: list[int]) -> Iterator[tuple[int | None, object]]:
        """What is to be written of those of the addresses that are here."""
        addresses = self._covered(self._top, asked)
        try:
            program = self._dwarf.line_program_for_CU(self._cu)
            self._header, self._rows = program.header, _rows_at(program, addresses)
        except Exception as error:
            yield None, f"a line program: {type(error).__name__}"
        try:
            self._find_functions(self._functions(), addresses)
        except Exception as error:
            yield None, f"functions: {type(error).__name__}"
        yield from ((address, self._answer(address)) for address in addresses)

    def _find_functions(self, dies: Iterable[Any], addresses: list[int], outer: tuple[Any, ...] = ()) -> None:
        """Find the functions at each address, among `dies` and what is inlined there."""
        for die in dies:
            if die.tag in _SCOPES and (inside := self._covered(die, addresses)):
                inner = outer if die.tag == "DW_TAG_lexical_block" else (*outer, die)[:_DEPTH_LIMIT]
                self._nestings.update(dict.fromkeys(inside, inner))
                self._find_functions(die.iter_children(), inside, inner)
                addresses = [address for address in addresses if address not in inside]
                if not addresses:
                    return

    def _functions(self) -> Iterator[Any]:
        """Those with code."""
        start, stream = self._cu.cu_offset, self._dwarf.debug_info_sec.stream
        stream.seek(start)
        data = stream.read(self._cu.size)
        at = self._cu.cu_die_offset - start
        while at < len(data):
            entry_at = at
            code, at = _uleb(data, at)
            sizes, is_function = self._layout(code) if code else ([], False)
            for size in sizes:
                if size >= 0:
                    at += size
                elif size == _STRING:
                    at = data.index(0, at) + 1
                elif size < _BLOCK:
                    at += _BLOCK - size + int.from_bytes(data[at : at + _BLOCK - size], "little")
                else:
                    value, at = _uleb(data, at)
                    at += value if size == _BLOCK else 0
            if is_function:
                yield self._cu.get_DIE_from_refaddr(start + entry_at)

    def _read_layout(self, code: int) -> tuple[list[int], bool]:
        """Of an abbreviation: sizes of its attributes, and whether it is a function with code."""
        declaration, sizes = self._cu.get_abbrev_table().get_abbrev(code), [0]
        for form in [spec.form for spec in declaration["attr_spec"]]:
            size = _SIZES.get(form.removeprefix("DW_FORM_"))
            size = self._cu.structs.Dwarf_dw_form[form].sizeof() if size is None else size
            sizes[-1:] = [sizes[-1] + size] if size >= 0 and sizes[-1] >= 0 else [sizes[-1], size]
        has_code = any(spec.name in ("DW_AT_low_pc", "DW_AT_ranges") for spec in declaration["attr_spec"])
        return sizes, has_code and declaration["tag"] == "DW_TAG_subprogram"

    def _covered(self, die: Any, addresses: list[int]) -> list[int]:
        """Those of `addresses` that lie in the code of `die`."""
        ranges, low, high = [], _value(die, "DW_AT_low_pc", 0), die.attributes.get("DW_AT_high_pc")
        if "DW_AT_ranges" in die.attributes:  # section 2.17.3: offsets from a base, which is that of the unit at first
            base, offset = _value(self._top, "DW_AT_low_pc", 0), die.attributes["DW_AT_ranges"].value
            for entry in self._dwarf.range_lists().get_range_list_at_offset(offset, cu=self._cu):
                base = getattr(entry, "base_address", base)
                if hasattr(entry, "is_absolute"):
                    start = 0 if entry.is_absolute else base
                    ranges.append((start + entry.begin_offset, start + entry.end_offset))
        elif high is not None:  # section 2.17.2: an address, or a distance from low_pc
            ranges = [(low, high.value if high.form.startswith("DW_FORM_addr") else low + high.value)]
        found = [addresses[bisect_left(addresses, start) : bisect_left(addresses, end)] for start, end in ranges]
        return sorted({address for inside in found for address in inside})

    def _answer(self, address: int) -> list[tuple[str, str, int, bool]]:
        _, file, line = self._rows.get(address, (0, -1, 0))
        nesting = self._nestings.get(address, ())
        answer = [] if nesting or file < 0 else [("", self._path(file), line % _LINE_LIMIT, False)]
        for depth, die in reversed(list(enumerate(nesting))):
            answer.append((self._name(die), self._path(file), line % _LINE_LIMIT, depth > 0))
            file, line = _value(die, "DW_AT_call_file", -1), _value(die, "DW_AT_call_line", 0)
        return answer

    def _read_name(self, die: Any) -> str:
        """The linkage name of a function, or else its name."""
        name = b""
        for _ in range(8):  # references: more would be a circle
            linkage = _value(die, "DW_AT_linkage_name", b"") or _value(die, "DW_AT_MIPS_linkage_name", b"")
            name = linkage or name or _value(die, "DW_AT_name", b"")
            origins = [key for key in ("DW_AT_abstract_origin", "DW_AT_specification") if key in die.attributes]
            if linkage or not origins or die.attributes[origins[0]].form == "DW_FORM_GNU_ref_alt":  # in another file
                break
            die = die.get_DIE_from_attribute(origins[0])
        return name[:_NAME_LIMIT_BYTES].decode("utf-8", "replace")

    def _read_path(self, number: int) -> str:
        """The path of a file, joined with its directories as the compiler wrote them; "" when there is none."""
        first = () if self._header["version"] >= 5 else (b"",)  # section 6.2.4: number 0 is in use since version 5
        if number < len(first) or "file_entry" not in self._header:
            return ""
        file = self._header["file_entry"][number - len(first)]
        directory = (*first, *self._header["include_directory"])[file["dir_index"]]
        path: bytes = os.path.join(_value(self._top, "DW_AT_comp_dir", b""), directory, file["name"])
        return path[:_NAME_LIMIT_BYTES].decode("utf-8", "replace")


def _rows_at(program: Any, addresses: list[int]) -> dict[int, Row]:  # noqa: C901 - one branch per opcode
    """The row of each address that a line program of pyelftools covers: section 6.2.5."""
    header, stream = program.header, program.stream
    stream.seek(program.program_start_offset)
    data = stream.read(program.program_end_offset - program.program_start_offset)
    opcode_base, operand_counts = header["opcode_base"], header["standard_opcode_lengths"]
    special = [divmod(opcode - opcode_base, header["line_range"]) for opcode in range(256)]
    steps = [(units * header["minimum_instruction_length"], header["line_base"] + lines) for units, lines in special]
    steps[_COPY] = 0, 0
    found: dict[int, Row] = {}
    rows: list[Row] = []
    at, address, file, line = 0, 0, 1, 1
    while at < len(data) and len(found) < len(addresses):
        opcode = data[at]
        at += 1
        if opcode >= opcode_base or opcode == _COPY:
            address += steps[opcode][0]
            line += steps[opcode][1]
            rows.append((address, file, line))
        elif opcode == _ADVANCE_PC:
            operand, at = _uleb(data, at)
            address += operand * header["minimum_instruction_length"]
        elif opcode == _ADVANCE_LINE:
            operand, end = _uleb(data, at)
            line += operand - (1 << 7 * (end - at) if data[end - 1] & 0x40 else 0)  # it is signed
            at = end
        elif opcode == _SET_FILE:
            file, at = _uleb(data, at)
        elif opcode == _CONST_ADD_PC:
            address += steps[255][0]
        elif opcode == _FIXED_ADVANCE_PC:
            address += int.from_bytes(data[at : at + 2], "little")
            at += 2
        elif opcode == _EXTENDED:
            size, at = _uleb(data, at)
            if size and data[at] == _END_SEQUENCE:
                first = bisect_left(addresses, rows[0][0] if rows else address)
                for wanted in addresses[first : bisect_left(addresses, address)]:
                    found.setdefault(wanted, rows[bisect_left(rows, (wanted + 1,)) - 1])
                rows, address, file, line = [], 0, 1, 1
            elif size and data[at] == _SET_ADDRESS:
                address = int.from_bytes(data[at + 1 : at + size], "little")
            at += size
        else:  # the operands change registers that are not used here
            for _ in range(operand_counts[opcode - 1]):
                _, at = _uleb(data, at)
    return found


def _uleb(data: bytes, at: int) -> tuple[int, int]:
    """(value, position after it): section 7.6."""
    value = shift = 0
    while data[at] >= 0x80:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | data[at] << shift, at + 1


def _value(die: Any, key: str, default: Any) -> Any:
    """The value of an attribute; the default when there is none or one of another type."""
    value = getattr(die.attributes.get(key), "value", default)
    return value if isinstance(value, type(default)) else default


def _answers(dwarf: Any, addresses: list[int]) -> Iterator[tuple[int | None, object]]:
    """What is to be written: units are found by .debug_aranges, and those that are not in it by their own ranges."""
    try:
        table = dwarf.get_aranges()
        known = {entry.info_offset for entry in table.entries}
    except Exception:  # there is none, or one that pyelftools does not read, such as that of 64-bit DWARF
        known = set()
    by_unit: dict[int | None, list[int]] = {}
    for address in addresses:
        by_unit.setdefault(table.cu_offset_at_addr(address) if known else None, []).append(address)
    rest = by_unit.pop(None, [])
    others = ((cu.cu_offset, rest) for cu in (dwarf.iter_CUs() if rest else ()) if cu.cu_offset not in known)
    # Those with the most addresses first, in case there is no time for all.
    for offset, asked in chain(sorted(by_unit.items(), key=lambda item: -len(item[1])), others):
        try:
            yield from _Unit(dwarf.get_CU_at(offset)).answers(asked)
        except Exception as error:
            yield None, f"a unit: {type(error).__name__}"


def confine(limits: dict[int, int], code: bytes) -> None:
    """Leave nothing to this process but its memory, its open descriptors and what a seccomp filter lets through.

    `limits` are of more resources than those of which it gets nothing.
    """
    nothing = dict.fromkeys((resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE), 0)
    for kind, limit in {**nothing, **limits}.items():
        resource.setrlimit(kind, (limit, limit))
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):  # bpfprof gave that up: then the filter has to do
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    libc, lines = ctypes.CDLL(None), ctypes.create_string_buffer(code, len(code) + 1)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if code:
        libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, struct.pack("H6xQ", len(code) // 8, ctypes.addressof(lines)), 0, 0)


def main() -> None:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # bpfprof goes before others; this need not
    sys.path.append(os.path.dirname(sys.argv[3]))
    from elftools.elf.elffile import ELFFile

    request = json.load(sys.stdin)
    addresses = request["addresses"]
    confine({**_LIMITS, resource.RLIMIT_CPU: int(sys.argv[2])}, bytes.fromhex(request["filter"]))
    try:
        # Without a loader of streams, links to other files are not followed.
        dwarf = ELFFile(os.fdopen(int(sys.argv[1]), "rb")).get_dwarf_info(relocate_dwarf_sections=False)
        for pair in _answers(dwarf, addresses):
            print(json.dumps(pair), flush=True)
    except Exception as error:
        print(json.dumps((None, f"debug sections: {type(error).__name__}")))


if __name__ == "__main__":
    main()
