"""One line number program: its bytes and asked addresses in; file number and line of each out.

DWARF 5, section 6.2, and the same section of versions 2 to 4. Not read by pyelftools (0.33): it makes an object of each
instruction, at ten times the time (1.1 s for the largest unit of CPython 3.13), and never ends on a table of files that
have no fields. Here only the rows of asked addresses are kept, and the program is left as soon as all are found.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bpfprof.elf.leb128 import read_sleb, read_uleb

Row = tuple[int, int]  # number of the file, line
ReadString = Callable[[int], bytes]  # by its offset in a string section

_TABLE_LIMIT = 1 << 16  # directories, or files, of one program; the largest of CPython and Rust's std have below 1000
_FIELD_LIMIT = 4 * _TABLE_LIMIT
_NAME_LIMIT_BYTES = 4096  # PATH_MAX
_LINE_LIMIT = 1 << 32
_CHUNK_BYTES = 1 << 16  # of a program, after which the time is looked at
_ADDRESS_LIMIT = 1 << 64

_LNCT_PATH, _LNCT_DIRECTORY_INDEX = 1, 2  # DWARF 5, section 7.22
_FORM_BLOCK2, _FORM_BLOCK4, _FORM_STRING, _FORM_BLOCK, _FORM_BLOCK1 = 0x03, 0x04, 0x08, 0x09, 0x0A
_FORM_STRP, _FORM_UDATA, _FORM_LINE_STRP = 0x0E, 0x0F, 0x1F  # DWARF 5, section 7.5.6
_FORM_SIZES = {0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x1E: 16}  # data1 to data16
_BLOCK_LENGTH_SIZES = {_FORM_BLOCK1: 1, _FORM_BLOCK2: 2, _FORM_BLOCK4: 4}
_EXTENDED, _COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE = 0, 1, 2, 3, 4  # section 7.22
_CONST_ADD_PC, _FIXED_ADVANCE_PC = 8, 9
_END_SEQUENCE, _SET_ADDRESS, _DEFINE_FILE = 1, 2, 3

Name = bytes | tuple[int, int]  # itself, or (form, offset of the string)


class FileEntry(NamedTuple):
    name: Name
    directory: int


class LineProgram:
    """Parses the header only; what `data` holds after the first program is not looked at."""

    def __init__(self, data: bytes, directory: bytes, strings: dict[int, ReadString]) -> None:
        """`directory` is that of the compilation; `strings` read .debug_str and .debug_line_str, by `STRING_FORMS`.

        Raises ValueError, IndexError or KeyError when the header is damaged.
        """
        self._data = data
        self._strings = strings
        self._compilation_directory = directory
        self._offset_size, at = (8, 12) if data[:4] == b"\xff\xff\xff\xff" else (4, 4)
        self._end = min(len(data), at + _number(data, at - self._offset_size, self._offset_size))
        self.version = _number(data, at, 2)
        if not 2 <= self.version <= 5:
            raise ValueError(f"a line program of version {self.version}")
        at += 4 if self.version >= 5 else 2  # the sizes of addresses and segment selectors
        self._start = at + self._offset_size + _number(data, at, self._offset_size)
        at += self._offset_size
        self._unit_bytes = data[at]
        at += 3 if self.version >= 4 else 2  # maximum_operations_per_instruction is 1 but for IA-64; default_is_stmt
        self._line_base = (data[at] ^ 0x80) - 0x80
        self._line_range, self._opcode_base = data[at + 1], data[at + 2]
        self._operand_counts = data[at + 2 : at + 2 + self._opcode_base]  # by opcode; that of 0 means nothing
        at += 2 + max(1, self._opcode_base)
        self._paths: dict[int, str] = {}
        if self.version >= 5:
            entries, at = self._read_entries(at)
            self._directories: list[Name] = [entry.name for entry in entries]
            self._files, _ = self._read_entries(at)
        else:
            self._read_old_tables(at)

    def _read_entries(self, at: int) -> tuple[list[FileEntry], int]:
        """A table of directories or files of version 5 (section 6.2.4.1), and where it ends."""
        fields, at = [], at + 1
        for _ in range(self._data[at - 1]):
            content, at = read_uleb(self._data, at)
            form, at = read_uleb(self._data, at)
            fields.append((content, form))
        count, at = read_uleb(self._data, at)
        if count * max(1, len(fields)) > (_FIELD_LIMIT if fields else 0):
            raise ValueError(f"a line program with {count} files or directories")
        entries = []
        for _ in range(count):
            name: Name = b""
            directory = 0
            for content, form in fields:
                value, at = self._read_form(form, at)
                if content == _LNCT_PATH and not isinstance(value, int):
                    name = value
                elif content == _LNCT_DIRECTORY_INDEX and isinstance(value, int):
                    directory = value
            entries.append(FileEntry(name, directory))
        return entries, at

    def _read_form(self, form: int, at: int) -> tuple[Name | int, int]:
        if form in self._strings:
            return (form, _number(self._data, at, self._offset_size)), at + self._offset_size
        if form == _FORM_STRING:
            return self._read_name(at)
        if form == _FORM_UDATA:
            return read_uleb(self._data, at)
        if form in _FORM_SIZES:
            return _number(self._data, at, _FORM_SIZES[form]), at + _FORM_SIZES[form]
        if form in _BLOCK_LENGTH_SIZES:
            size = _number(self._data, at, _BLOCK_LENGTH_SIZES[form])
            return 0, at + _BLOCK_LENGTH_SIZES[form] + size
        if form == _FORM_BLOCK:
            size, at = read_uleb(self._data, at)
            return 0, at + size
        raise ValueError(f"a line program with names of form {form:#x}")

    def _read_name(self, at: int) -> tuple[bytes, int]:
        end = self._data.index(0, at)
        return self._data[at : min(end, at + _NAME_LIMIT_BYTES)], end + 1

    def _read_old_tables(self, at: int) -> None:
        """Versions 2 to 4: number 0 is the directory of the compilation, and no file."""
        self._directories = [b""]
        self._files = [FileEntry(b"", 0)]
        name, at = self._read_name(at)
        while name and len(self._directories) <= _TABLE_LIMIT:
            self._directories.append(name)
            name, at = self._read_name(at)
        name, _ = self._read_name(at)
        while name and len(self._files) <= _TABLE_LIMIT:
            at = self._read_old_file(at)
            name, _ = self._read_name(at)
        if name:
            raise ValueError("a line program with too many files or directories")

    def _read_old_file(self, at: int) -> int:
        name, at = self._read_name(at)
        directory, at = read_uleb(self._data, at)
        _, at = read_uleb(self._data, at)  # when it was modified
        _, at = read_uleb(self._data, at)  # its size
        if len(self._files) <= _TABLE_LIMIT:
            self._files.append(FileEntry(name, directory))
        return at

    def path(self, file: int) -> str:
        """Of the file of that number, joined with its directories as they are written; "" when it has none."""
        if file not in self._paths:
            self._paths[file] = self._join(file)
        return self._paths[file]

    def _join(self, file: int) -> str:
        if not 0 < file + (self.version >= 5) <= len(self._files) - (self.version < 5):
            return ""
        entry = self._files[file]
        name = self._name(entry.name)
        if not name:
            return ""
        directories = self._directories
        directory = self._name(directories[entry.directory]) if entry.directory < len(directories) else b""
        whole = posixpath.join(self._compilation_directory, directory, name)
        return whole[:_NAME_LIMIT_BYTES].decode("utf-8", "replace")

    def _name(self, name: Name) -> bytes:
        if isinstance(name, bytes):
            return name
        return self._strings[name[0]](name[1])[:_NAME_LIMIT_BYTES]

    def rows_at(self, addresses: Sequence[int], check_time: Callable[[], None]) -> dict[int, Row]:
        """The row that covers each of `addresses`, which ascend; those that none covers are left out.

        Of several rows that begin at one address the last counts. Raises as __init__ does, and what `check_time` does.
        """
        if self._line_range == 0:
            raise ValueError("a line program with a line_range of 0")
        found: dict[int, Row] = {}
        finder = _RowFinder(addresses, found)
        at = self._start
        file = line = 1
        address = 0
        while at < self._end and len(found) < len(addresses):
            check_time()
            at, address, file, line = self._run(at, min(self._end, at + _CHUNK_BYTES), address, file, line, finder)
        return found

    def _run(  # noqa: C901 - one branch an opcode; calls would double the time
        self, at: int, end: int, address: int, file: int, line: int, finder: _RowFinder
    ) -> tuple[int, int, int, int]:
        """Run the instructions from `at` until `end` is reached: (position, address, file, line) then."""
        data, opcode_base, line_range = self._data, self._opcode_base, self._line_range
        steps = [(op - opcode_base) // line_range * self._unit_bytes for op in range(256)]
        lines = [self._line_base + (op - opcode_base) % line_range for op in range(256)]
        while at < end:
            opcode = data[at]
            at += 1
            if opcode >= opcode_base:  # special: section 6.2.5.1
                address += steps[opcode]
                line += lines[opcode]
                if address > finder.wanted or address < finder.row_address:
                    finder.reach(address)
                finder.row_address, finder.file, finder.line = address, file, line
            elif opcode == _COPY:
                if address > finder.wanted or address < finder.row_address:
                    finder.reach(address)
                finder.row_address, finder.file, finder.line = address, file, line
            elif opcode == _ADVANCE_PC:
                operand, at = read_uleb(data, at)
                address += operand * self._unit_bytes
            elif opcode == _ADVANCE_LINE:
                operand, at = read_sleb(data, at)
                line += operand
            elif opcode == _SET_FILE:
                file, at = read_uleb(data, at)
            elif opcode == _CONST_ADD_PC:
                address += steps[255]
            elif opcode == _FIXED_ADVANCE_PC:
                address += _number(data, at, 2)
                at += 2
            elif opcode == _EXTENDED:
                size, at = read_uleb(data, at)
                kind = data[at] if size else 0
                if kind == _END_SEQUENCE:
                    finder.reach(address)
                    finder.row_address = _ADDRESS_LIMIT  # no row: the next one only begins something
                    finder.wanted = _ADDRESS_LIMIT
                    address, file, line = 0, 1, 1
                elif kind == _SET_ADDRESS:
                    address = _number(data, at + 1, min(size - 1, 8))
                elif kind == _DEFINE_FILE and self.version < 5:
                    self._read_old_file(at + 1)
                at += size
            else:  # its operands only change registers that are not used here
                for _ in range(self._operand_counts[opcode]):
                    _, at = (0, at + 1) if data[at] < 0x80 else read_uleb(data, at)
        return at, address, file, line


class _RowFinder:
    """The last row of a sequence, and the first asked address at or behind it."""

    def __init__(self, addresses: Sequence[int], found: dict[int, Row]) -> None:
        self._addresses = addresses
        self._found = found
        self.row_address = self.wanted = _ADDRESS_LIMIT
        self.file = self.line = 0

    def reach(self, address: int) -> None:
        """A row begins at `address`, so the last one ends there."""
        index = bisect_left(self._addresses, min(self.row_address, address))
        while index < len(self._addresses) and self._addresses[index] < address:
            line = self.line if 0 <= self.line < _LINE_LIMIT else 0
            self._found.setdefault(self._addresses[index], (self.file, line))
            index += 1
        self.wanted = self._addresses[index] if index < len(self._addresses) else _ADDRESS_LIMIT


STRING_FORMS = {"debug_str": _FORM_STRP, "debug_line_str": _FORM_LINE_STRP}


def _number(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise IndexError("the line program ends within a number")
    return int.from_bytes(data[at : at + size], "little")
