"""The values in a Python frame of a running process: a frame and its code in; names and addresses of objects out.

A frame ends in its local variables, those that cells hold, and its value stack. What it runs may change them meanwhile:
lengths are bounded, and what cannot be read is left out.

Structures: PyFrameObject and PyCodeObject, Include/frameobject.h (Include/cpython/ from 3.9 on) and code.h (3.6 to
3.10); _PyInterpreterFrame, Include/internal/pycore_frame.h (from 3.14 on pycore_interpframe_structs.h); kinds of
variables, pycore_code.h; PyCellObject, Include/cellobject.h. The tests compile the offsets.
"""

from __future__ import annotations

import struct
from dataclasses import field, replace

from bpfprof.cpython.code_objects import read_text
from bpfprof.cpython.layout import NONE
from bpfprof.cpython.objects import DICT_SUBCLASS, VAR_SIZE, Changed, Objects
from bpfprof.dataclass import dataclass

_NAMES_LIMIT, _NAME_LIMIT = 256, 100  # of one frame; characters of one
_WORDS_LIMIT = 4096  # of one frame
_CELL_OR_FREE = 0x40 | 0x80  # CO_FAST_CELL, CO_FAST_FREE
_OPTIMIZED = 1  # CO_OPTIMIZED of co_flags, Include/code.h: a function, whose variables are not in a dict
_CELL_VALUE = 16  # ob_ref
TAGS = 3  # of references since 3.14, Include/internal/pycore_stackref.h
_TAGGED_INT = 3  # Py_INT_TAG: no object


@dataclass(frozen=True)
class ValuesLayout:
    """Offsets in frames, and in code objects whose header has 16 bytes.

    names: a tuple of the names of all variables, before 3.11 of those that no cell holds; used_names: of all others.
    """

    frame_values: int  # localsplus
    frame_locals: int  # f_locals: the dict of a module or of a class body
    flags: int
    stack_size: int
    names: int
    used_names: int
    kinds: int = 104  # bytes, one for each variable; NONE before 3.11
    cell_names: int = NONE
    free_names: int = NONE
    tuple_items: int = 24  # ob_item


_CPYTHON_3_11 = ValuesLayout(frame_values=72, frame_locals=24, flags=48, stack_size=68, names=96, used_names=32)
_CPYTHON_3_12 = replace(_CPYTHON_3_11, frame_locals=40, stack_size=64)
_CPYTHON_3_14 = replace(_CPYTHON_3_12, frame_values=80, tuple_items=32)  # a tuple keeps its hash
_CPYTHON_3_10 = ValuesLayout(
    frame_values=352,
    frame_locals=56,
    flags=36,
    stack_size=32,
    names=72,
    used_names=64,
    kinds=NONE,
    cell_names=88,
    free_names=80,
)
_CPYTHON_3_9 = replace(_CPYTHON_3_10, frame_values=360)
_CPYTHON_3_7 = replace(_CPYTHON_3_9, flags=32, stack_size=28, names=64, used_names=56, cell_names=80, free_names=72)
VALUES_LAYOUTS = {
    (3, 6): replace(_CPYTHON_3_7, frame_values=376),
    (3, 7): _CPYTHON_3_7,
    (3, 8): _CPYTHON_3_9,
    (3, 9): _CPYTHON_3_9,
    (3, 10): _CPYTHON_3_10,
    (3, 11): _CPYTHON_3_11,
    (3, 12): _CPYTHON_3_12,
    (3, 13): _CPYTHON_3_12,
    (3, 14): _CPYTHON_3_14,
    (3, 15): _CPYTHON_3_14,
}


@dataclass(frozen=True)
class _Code:
    """Of one code object: its variables, a kind for each, and how much its value stack holds at most.

    variables: how many there are, also of those whose names are not read.
    """

    names: list[str]
    kinds: bytes
    variables: int
    stack_size: int
    is_function: bool


_NO_CODE = _Code([], b"", 0, 0, True)


@dataclass
class FrameValues:
    """Of one process and one look: code objects are read once, so it must not be kept."""

    objects: Objects
    _codes: dict[int, _Code] = field(default_factory=dict)

    @property
    def _layout(self) -> ValuesLayout:
        return VALUES_LAYOUTS[self.objects.layout.version]

    def variables(self, frame: int, code: int) -> dict[str, int]:
        """Name -> address of the value, of the variables that have one now."""
        known = self._code(code)
        found: dict[str, int] = {}
        try:
            if not known.is_function:
                return self._of_dict(self.objects.word(frame + self._layout.frame_locals))
            words = self._read_words(frame, len(known.names))
        except Changed:
            return found
        for name, kind, word in zip(known.names, known.kinds, words):
            value = 0 if word & TAGS == _TAGGED_INT else word & ~TAGS
            if value and kind & _CELL_OR_FREE:
                value = self._in_cell(value)
            if value:
                found[name] = value
        return found

    def sizes(self, code: int) -> tuple[int, int]:
        """How many words the variables of a frame of this code take, and its value stack after them at most.

        Raises Changed where they are too many to be read.
        """
        known = self._code(code)
        if known.variables + known.stack_size > _WORDS_LIMIT:
            raise Changed
        return known.variables, known.stack_size

    def used_names(self, code: int) -> list[str]:
        """Of globals and attributes that the code uses. Raises Changed, also where they are too many."""
        names = self.objects.member(code, self._layout.used_names)
        if self.objects.member(names, VAR_SIZE) > _NAMES_LIMIT:
            raise Changed
        return self._tuple(names)

    def _read_words(self, frame: int, count: int) -> tuple[int, ...]:
        if not count:
            return ()
        return struct.unpack(f"<{count}Q", self.objects.read(frame + self._layout.frame_values, 8 * count))

    def _of_dict(self, address: int) -> dict[str, int]:
        """Without names of Python's own, like `__name__`."""
        objects = self.objects
        if not address or not objects.flags(objects.type_of(address)) & DICT_SUBCLASS:
            return {}
        entries = objects.entries(address)[:_NAMES_LIMIT]
        named = ((read_text(objects.memory, objects.layout, key, _NAME_LIMIT), value) for _, key, value in entries)
        return {name: value for name, value in named if name and not name.startswith("__")}

    def _in_cell(self, address: int) -> int:
        """What a cell holds. An argument is in none until its function begins."""
        try:
            if self.objects.name(self.objects.type_of(address)) != "cell":
                return address
            return self.objects.member(address, _CELL_VALUE)
        except Changed:
            return 0

    def _code(self, address: int) -> _Code:
        if address not in self._codes:
            try:
                self._codes[address] = self._read_code(address)
            except Changed:
                self._codes[address] = _NO_CODE
        return self._codes[address]

    def _read_code(self, address: int) -> _Code:
        objects, layout = self.objects, self._layout
        flags, stack_size = (objects.member(address, at) & 0xFFFFFFFF for at in (layout.flags, layout.stack_size))
        own = (layout.names, layout.cell_names, layout.free_names)
        tuples = [objects.member(address, each) for each in own if each != NONE]
        variables = sum(objects.member(row, VAR_SIZE) for row in tuples)
        parts = [self._tuple(row) for row in tuples]
        names = [name for part in parts for name in part]
        if layout.kinds == NONE:
            kinds = bytes(len(parts[0])) + bytes([_CELL_OR_FREE]) * (len(names) - len(parts[0]))
        else:
            kinds_at = objects.member(address, layout.kinds)
            begin = objects.layout.bytes_data
            kinds = objects.read(kinds_at + begin, len(names)) if names else b""
        return _Code(
            names, kinds, min(variables, _WORDS_LIMIT + 1), min(stack_size, _WORDS_LIMIT), bool(flags & _OPTIMIZED)
        )

    def _tuple(self, address: int) -> list[str]:
        """The texts of a tuple."""
        objects = self.objects
        count = min(objects.member(address, VAR_SIZE), _NAMES_LIMIT)
        shift = objects.layout.code_type - 8
        data = objects.read(address + self._layout.tuple_items + shift, 8 * count) if count else b""
        texts = (read_text(objects.memory, objects.layout, it, _NAME_LIMIT) for (it,) in struct.iter_unpack("<Q", data))
        return [text or "?" for text in texts]
