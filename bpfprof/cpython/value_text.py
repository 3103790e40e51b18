"""An object of a running CPython -> a short text of it, without running anything of the program.

What a number, a text or bytes are is said, of containers how many they hold, of all else its type only.

Structures: PyLongObject (Include/longintrepr.h, from 3.12 on Include/cpython/longintrepr.h), PyFloatObject,
PySetObject (Include/setobject.h), PyVarObject, the same in 3.6 to 3.15; flags of types, Include/object.h.
"""

from __future__ import annotations

import struct

from bpfprof.cpython.code_objects import read_text
from bpfprof.cpython.objects import DICT_SUBCLASS, DICT_USED, VAR_SIZE, Changed, Objects
from bpfprof.dataclass import dataclass

_TEXT_LIMIT, _BYTES_LIMIT, _WHOLE_LIMIT = 60, 20, 100
_LONG, _LIST, _TUPLE, _BYTES, _STR, _DICT, _TYPE = 1 << 24, 1 << 25, 1 << 26, 1 << 27, 1 << 28, DICT_SUBCLASS, 1 << 31
_SAID = {"NoneType": "None", "ellipsis": "Ellipsis", "NotImplementedType": "NotImplemented"}
_COUNTED = ("bytearray", "collections.deque")
_SETS = ("set", "frozenset")
_FLOAT, _SET_USED, _LONG_SIZE, _DIGITS = 16, 24, 16, 24  # in objects whose header has 16 bytes
_DIGIT_BITS, _DIGITS_LIMIT = 30, 8  # PyLong_SHIFT; more are only counted
_SIGN_BITS, _NEGATIVE = 3, 2  # of lv_tag, from 3.12 on: NON_SIZE_BITS and SIGN_NEGATIVE in pycore_long.h
_TAGGED = (3, 12)


@dataclass(frozen=True)
class ValueTexts:
    """Of one process."""

    objects: Objects

    def of(self, address: int) -> str:
        """At most 100 characters, none of which acts on a terminal; "?" for what is no object, or is changing."""
        try:
            kind = self.objects.type_of(address)
            text = self._text(address, self.objects.name(kind), self.objects.flags(kind))
        except Changed:
            return "?"
        return text if len(text) <= _WHOLE_LIMIT else text[: _WHOLE_LIMIT - 1] + "…"

    def _text(self, address: int, name: str, flags: int) -> str:
        objects = self.objects
        if name in _SAID:
            return _SAID[name]
        if flags & _LONG:
            count, _ = _digits(self.objects, address)
            is_long = count > _DIGITS_LIMIT
            value = f"<{_DIGIT_BITS * count:,} bits>" if is_long else str(whole_number(self.objects, address))
            if name == "bool":
                return str(value != "0")
            return value if name == "int" else f"{name}({value})"
        if name == "float":
            (number,) = struct.unpack("<d", objects.read(address + _FLOAT + self._shift, 8))
            return repr(number)
        if flags & (_STR | _BYTES):
            value = self._quoted(address) if flags & _STR else self._bytes(address)
            return value if name in ("str", "bytes") else f"{name}({value})"
        if flags & _TYPE:
            return f"<class {objects.name(address)}>"
        if flags & (_LIST | _TUPLE | _DICT) or name in (*_COUNTED, *_SETS):
            at = _SET_USED if name in _SETS else DICT_USED if flags & _DICT else VAR_SIZE
            return f"{name} of {objects.member(address, at):,}"
        return f"<{name}>"

    @property
    def _shift(self) -> int:
        return self.objects.layout.code_type - 8

    def _quoted(self, address: int) -> str:
        text = read_text(self.objects.memory, self.objects.layout, address, _TEXT_LIMIT)
        if text is None:
            raise Changed
        return repr(text)  # escapes what cannot be seen, too

    def _bytes(self, address: int) -> str:
        size = self.objects.member(address, VAR_SIZE)
        kept = min(size, _BYTES_LIMIT)
        begin = self.objects.layout.bytes_data
        data = self.objects.read(address + begin, kept) if kept else b""
        return repr(data) + "…" * (kept < size)


def whole_number(objects: Objects, address: int) -> int:
    """The value of an `int` of 240 bits at most. Raises Changed."""
    count, is_negative = _digits(objects, address)
    if count > _DIGITS_LIMIT:
        raise Changed
    data = objects.read(address + _DIGITS + objects.layout.code_type - 8, 4 * count) if count else b""
    digits = (digit for (digit,) in struct.iter_unpack("<I", data))
    value: int = sum(digit << (_DIGIT_BITS * place) for place, digit in enumerate(digits))
    return -value if is_negative else value


def _digits(objects: Objects, address: int) -> tuple[int, bool]:
    """(how many, whether it is negative)"""
    tag = objects.member(address, _LONG_SIZE)
    if objects.layout.version >= _TAGGED:
        count, is_negative = tag >> _SIGN_BITS, tag & 3 == _NEGATIVE
    else:
        is_negative = tag >> 63 != 0
        count = (1 << 64) - tag if is_negative else tag
    if count >= 1 << 32:
        raise Changed
    return count, is_negative
