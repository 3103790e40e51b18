"""The bodies of `with` statements that a frame is in: what the frame calls when it leaves them out.

It stands on the value stack from before `__enter__` is called until after the body, and its place keeps it for longer.
So it counts only where the frame would call it if an exception came now, which is so from the end of `__enter__` to
that of the body. Up to 3.10 the frame has a block for each such place. From 3.11 on the table of exceptions of its code
tells it for each instruction: SETUP_WITH and what follows, Python/ceval.c (v3.6.15 to v3.10.13), Objects/
exception_handling_notes.txt (v3.11.7), WITH_EXCEPT_START in Python/bytecodes.c (v3.12.1 to v3.15.2).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import field

from bpfprof.cpython.frame_values import TAGS, VALUES_LAYOUTS, FrameValues
from bpfprof.cpython.objects import VAR_SIZE, Changed, Objects
from bpfprof.dataclass import dataclass

_BLOCK = struct.Struct("<iii")  # PyTryBlock: b_type, b_handler, b_level; Include/frameobject.h, 3.6 to 3.10
_MOST_BLOCKS = 20  # CO_MAXBLOCKS; they end where the values begin, and their number is before them
_SETUP_FINALLY = 122  # b_type, 3.6 to 3.10
_TABLE_AT = 40  # co_exceptiontable, from 3.11 on
_TABLE_LIMIT_BYTES = 1 << 18
_CODE_BEFORE_NAMES = 16  # co_code, then co_consts and co_names, before 3.11
_SELF_FROM = (3, 14)  # from here on there are two words: the function, and what it is called for or 0
_NESTED_LIMIT = 128  # of blocks of one frame

Entry = tuple[int, int, int, int]  # from and before which code unit, where it goes on, how much of the stack is kept


def read_table(data: bytes) -> list[Entry]:
    """A table of exceptions: numbers of 6 bits a byte, the high ones first; ends early where it is damaged."""
    found: list[Entry] = []
    numbers: list[int] = []
    value = 0
    for byte in data:
        if byte & 0x80:  # the first byte of an entry
            numbers, value = [], 0
        value = value << 6 | byte & 63
        if not byte & 0x40:
            numbers.append(value)
            value = 0
            if len(numbers) == 4:
                start, size, target, depth = numbers
                found.append((start, start + size, target, depth >> 1))
    return found


def kept_depths(table: list[Entry], unit: int, is_with: Callable[[int], bool]) -> list[int]:
    """How much of the value stack is kept for each `with` whose body this code unit is in, the inner ones first.

    Where an exception is not handled it goes on from the handler, so that each handler is in the blocks around it.
    """
    found: list[int] = []
    seen: set[int] = set()
    while len(seen) < _NESTED_LIMIT:
        entry = next((each for each in table if each[0] <= unit < each[1]), None)
        if entry is None or entry[2] in seen:
            break
        _, _, unit, depth = entry
        seen.add(unit)
        if is_with(unit):
            found.append(depth)
    return found


@dataclass
class _Code:
    """Of one code object. handlers: whether it is that of a `with`, by place."""

    table: list[Entry]
    handlers: dict[int, bool] = field(default_factory=dict)
    depths: dict[int, list[int]] = field(default_factory=dict)  # by code unit


@dataclass
class WithBodies:
    """Of one process and one look."""

    objects: Objects
    values: FrameValues
    _codes: dict[int, _Code] = field(default_factory=dict)

    def exits(self, frame: int, code: int) -> list[tuple[int, int]]:
        """(method, what it is called for or 0) of each `with` whose body the frame is in, the inner ones first."""
        version = self.objects.layout.version
        try:
            variables, stack_size = self.values.sizes(code)
            values_at = VALUES_LAYOUTS[version].frame_values
            # In one read, because the frame goes on meanwhile.
            data = self.objects.read(frame, values_at + 8 * (variables + stack_size))
            if _u64(data, self.objects.layout.frame_code) & ~TAGS != code:
                return []
            known = self._codes.get(code)
            if known is None:
                known = self._codes[code] = self._read_code(code)
            if version < (3, 11):
                depths = self._by_blocks(known, code, data[:values_at])
            else:
                depths = self._by_table(known, code, data)
        except (Changed, struct.error):
            return []
        stack = [word & ~TAGS for (word,) in struct.iter_unpack("<Q", data[values_at + 8 * variables :])]
        size = 2 if version >= _SELF_FROM else 1
        found = (stack[depth - size : depth] for depth in depths if size <= depth <= len(stack))
        return [(words[0], words[1] if size == 2 else 0) for words in found]

    def _by_blocks(self, known: _Code, code: int, head: bytes) -> list[int]:
        begin = len(head) - _MOST_BLOCKS * _BLOCK.size
        (count,) = struct.unpack_from("<i", head, begin - 8)
        found = []
        for place in range(min(max(count, 0), _MOST_BLOCKS)):
            kind, handler, level = _BLOCK.unpack_from(head, begin + place * _BLOCK.size)
            if kind == _SETUP_FINALLY and self._is_with(known, code, handler):
                found.append(level)
        return found[::-1]

    def _by_table(self, known: _Code, code: int, data: bytes) -> list[int]:
        layout = self.objects.layout
        unit = (_u64(data, layout.frame_instruction) - code - layout.code_adaptive) // 2
        if unit not in known.depths:
            known.depths[unit] = kept_depths(known.table, unit, lambda at: self._is_with(known, code, at))
        return known.depths[unit]

    def _is_with(self, known: _Code, code: int, handler: int) -> bool:
        """Whether the code of a handler, by its place as CPython keeps it, begins as that of a `with`."""
        if handler not in known.handlers:
            layout = self.objects.layout
            if layout.version < (3, 11):
                unit_bytes = layout.lasti_bytes
                code_at = VALUES_LAYOUTS[layout.version].used_names - _CODE_BEFORE_NAMES
                at = self.objects.word(code + code_at) + layout.bytes_data + handler * unit_bytes
            else:
                at = code + layout.code_adaptive + 2 * (handler + 1)  # after PUSH_EXC_INFO
            known.handlers[handler] = self.objects.read(at, 1)[0] == layout.with_handler
        return known.handlers[handler]

    def _read_code(self, code: int) -> _Code:
        if self.objects.layout.version < (3, 11):
            return _Code([])
        table = self.objects.word(code + _TABLE_AT)
        size = self.objects.word(table + VAR_SIZE)
        if size > _TABLE_LIMIT_BYTES:
            raise Changed
        return _Code(read_table(self.objects.read(table + self.objects.layout.bytes_data, size)) if size else [])


def _u64(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 8], "little")
