"""Code and instruction addresses of a running process -> frames with function, file and line."""

from __future__ import annotations

import time

from bpfprof.capture.process import Process
from bpfprof.cpython.code_objects import CodeObject, Unresolved
from bpfprof.cpython.line_tables import LineTable
from bpfprof.cpython.thread_state import RawFrame
from bpfprof.model.frames import Frame, FrameKind

_NO_MARKS = 256  # above all bytes
# For the code objects of a look: some 20,000, where stacks of a program have some hundreds. Each may be another one.
_READING_S = 5.0
_TOO_MANY = Unresolved("too many code objects to be read in time")


class FrameReader:
    """Of one process and one look: code objects are read once, so it must not be kept."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._codes: dict[int, CodeObject | Unresolved] = {}
        self._tables: dict[int, LineTable] = {}
        self._left_s = _READING_S

    def frames(self, raw: list[RawFrame]) -> list[Frame]:
        """Of functions: entries of the interpreter that are frames of their own are left out."""
        found = self._process.interpreter
        if found is None:
            return []
        return [self._frame(found.layout.version, *raw[place][:2]) for place in self.places(raw)]

    def places(self, raw: list[RawFrame]) -> list[int]:
        """Those of them that frames() returns."""
        found = self._process.interpreter
        if found is None:
            return []
        first_entry = _NO_MARKS if found.layout.shim_is_python else found.layout.entry_marks_from
        return [place for place, (_, _, mark) in enumerate(raw) if mark < first_entry]

    def code(self, address: int) -> CodeObject | Unresolved:
        """The code object at an address."""
        code = self._codes.get(address)
        if code is None and self._left_s <= 0:
            return _TOO_MANY
        if code is None:
            begin_s = time.monotonic()
            code = self._codes[address] = self._process.read_code(address)
            self._left_s -= time.monotonic() - begin_s
        return code

    def _frame(self, version: tuple[int, int], address: int, instruction: int) -> Frame:
        code = self.code(address)
        if isinstance(code, Unresolved):
            return Frame(FrameKind.PYTHON, f"[{code.reason}]")
        table = self._tables.get(address)
        if table is None:
            begin_s = time.monotonic()
            table = self._tables[address] = LineTable.decode(version, code.linetable, code.first_line)
            self._left_s -= time.monotonic() - begin_s
        offset = instruction - code.code_start
        return Frame(FrameKind.PYTHON, code.qualname, code.filename, table.line(offset) or table.nearest_line(offset))
