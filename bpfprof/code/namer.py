"""Files, native frames and their names on the way into the recording."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from functools import partial
from typing import Any

import numpy as np

from bpfprof.code.addresses import NativeTable
from bpfprof.code.files import CodeFile
from bpfprof.code.maps import NativeCode
from bpfprof.model.samples import NAME_DTYPE, NATIVE_EXACT, NO_FILE
from bpfprof.names.native_names import NativeNames
from bpfprof.recording.tables import RecordedFile, table_row
from bpfprof.recording.writer import Sink

_WAIT_S = 60.0
_Row = tuple[int, int, int, int, int]  # of NAME_DTYPE


class Namer:
    """Writes what the recording does not have yet: addresses as they are met, names as they are found."""

    def __init__(self, code: NativeCode, with_lines: bool) -> None:
        self.code = code
        self.natives = NativeTable(code)
        self._names = NativeNames(with_lines)
        self._asked_count = 0
        self._pending: dict[int, tuple[CodeFile, list[tuple[int, int]]]] = {}  # popped in the background
        self._order = itertools.count()
        self._found: deque[tuple[list[str], list[_Row]]] = deque()

    @property
    def pending_count(self) -> int:
        """Files' addresses that were asked for and have no answer yet."""
        return len(self._pending)

    def write_new(self, sink: Sink) -> None:
        """Files and addresses, before the stacks that refer to them; and names that were found meanwhile."""
        files = self.code.files.take_new()
        if files:
            sink.write("files", {"rows": [_file_row(file) for file in files]})
        rows = self.natives.take_new()
        if len(rows):
            sink.write("natives", arrays={"rows": rows})
        while self._found:
            texts, names = self._found.popleft()
            sink.write("names", {"texts": texts}, {"rows": np.array(names, NAME_DTYPE)})

    def ask(self) -> None:
        """Has names looked up, in the background, of all addresses that were written."""
        by_file: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number in range(self._asked_count + 1, self.natives.written_count + 1):
            address, file, flags = self.natives.rows[number - 1]
            if file != NO_FILE:
                by_file[file].append((number, address if flags & NATIVE_EXACT else address - 1))
        self._asked_count = self.natives.written_count
        for file, asked in by_file.items():
            number = next(self._order)
            self._pending[number] = (self.code.files.files[file], asked)
            self.code.files.naming.add(number, partial(self._look_up, number))

    def finish(self, sink: Sink) -> None:
        """Writes the names that are still missing."""
        self.ask()
        self.code.files.naming.wait(_WAIT_S)
        self.write_new(sink)
        noted = [file for file in self.code.files.files if file.note]
        if noted:
            sink.write("files", {"rows": [_file_row(file) for file in noted]})

    def _look_up(self, number: int) -> None:
        """A stranger's file that cannot be read costs its names."""
        file, asked = self._pending.pop(number)
        try:
            answers = self._names.resolve(file, [address for _, address in asked])
        except Exception as error:  # a bug in a decoder
            file.note = file.note or f"no names: internal error: {type(error).__name__}: {error}"
            return
        texts: dict[str, int] = {"": 0}
        names: list[_Row] = []
        for (native, _), found in zip(asked, answers, strict=True):
            for function, file_name, line, flags in found:
                function_place = texts.setdefault(function, len(texts))
                names.append((native, function_place, texts.setdefault(file_name, len(texts)), line, flags))
        if names:
            self._found.append((list(texts), names))


def _file_row(file: CodeFile) -> dict[str, Any]:
    build_id = file.image.build_id if file.image is not None else ""
    return table_row(file.number, RecordedFile(file.kind.value, file.path, build_id, file.note))
