"""Objects of a running CPython, one at a time: an address in; attributes, values of dicts and words out.

The target keeps running, so what is read may be changing: sizes are bounded, and what cannot be raises `Changed`.

Structures: Objects/dict-common.h (3.6 to 3.10), Include/internal/pycore_dict.h (from 3.11), Include/cpython/object.h;
where instances keep attributes: _PyObject_GetDictPtr (3.6 to 3.10), _PyObject_ValuesPointer (3.11),
_PyObject_DictOrValuesPointer (3.12), _PyObject_InlineValues and _PyObject_ManagedDictPointer (from 3.13 on).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import field

from bpfprof.cpython.code_objects import read_text
from bpfprof.cpython.layout import NONE, Layout
from bpfprof.dataclass import dataclass
from bpfprof.proc.memory import Memory
from bpfprof.proc.text import with_controls_replaced

# Offsets in objects whose header has 16 bytes; in the free-threaded build it has 32. The same in all versions.
MODULE_DICT, DICT_USED, VAR_SIZE, _DICT_KEYS, _DICT_VALUES = 16, 16, 16, 32, 40
_TYPE_NAME, _BASIC_SIZE, _FLAGS, _BASE, _DICT_OFFSET = 24, 32, 168, 256, 288
_INLINE_VALUES, _MANAGED_DICT = 1 << 2, 1 << 4  # of tp_flags, Include/object.h
DICT_SUBCLASS = 1 << 29
_GENERAL_KEYS = 0  # dk_kind, of keys that are no strings
_KEYS_HEAD_BYTES = 40
_TYPE = 8  # ob_type in a header of 16 bytes

_ENTRY_LIMIT = 20_000  # of a dict
_NAME_LIMIT = 256
_BASES_LIMIT = 32


class Changed(Exception):
    """Something was not what it has to be: it is changing, or gone."""


@dataclass(frozen=True)
class _Type:
    """What is needed of a type to find the attributes of its instances."""

    flags: int
    basic_size: int
    dict_offset: int
    cached_keys: int


@dataclass
class Objects:
    """Of one process. What does not change is kept: what is known of types, and where interned strings are."""

    memory: Memory
    layout: Layout
    keys: dict[str, int] = field(default_factory=dict)  # interned strings that were found
    _types: dict[int, _Type] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)  # of types

    def modules(self, interpreter: int) -> int:
        """Address of sys.modules; 0 when there is none yet."""
        return self.word(interpreter + self.layout.interpreter_modules)

    def type_of(self, instance: int) -> int:
        """Address of the type of an object."""
        return self.word(instance + self.layout.code_type)

    def type_names(self, kind: int) -> list[str]:
        """What a type is called, and the types it is made of first; as CPython's own are: with their module."""
        names: list[str] = []
        while kind and len(names) < _BASES_LIMIT:
            text = self.memory.read_up_to(self.member(kind, _TYPE_NAME), _NAME_LIMIT).partition(b"\0")[0]
            names.append(with_controls_replaced(text.decode("utf-8", "replace")))
            kind = self.member(kind, _BASE)
        return names

    def name(self, kind: int) -> str:
        """What a type is called."""
        if kind not in self._names:
            self._names[kind] = (self.type_names(kind) or [""])[0]
        return self._names[kind]

    def flags(self, kind: int) -> int:
        """tp_flags of a type."""
        return self._type(kind).flags

    def attribute(self, instance: int, name: str) -> int:
        """Address of the value of an attribute that is stored in an instance."""
        kind = self._type(self.type_of(instance))
        is_free_threaded = self.layout.code_type != _TYPE
        if not kind.flags & _MANAGED_DICT or self.layout.version < (3, 11):
            return self.value(self.word(instance + kind.dict_offset), name)
        if self.layout.version == (3, 11):
            values = self.word(instance - 32)
            dictionary = self.word(instance - 24)
        else:
            dictionary = self.word(instance - (8 if is_free_threaded else 24))
            values = dictionary + 1 if dictionary & 1 else 0  # 3.12: one of both, told by a bit
            if not dictionary and self.layout.version >= (3, 13) and kind.flags & _INLINE_VALUES:
                values = instance + kind.basic_size
        if not values:
            return self.value(dictionary, name)
        return self._find(self._entries_of(kind.cached_keys, values), name)

    def _type(self, address: int) -> _Type:
        if address not in self._types:
            keys = self.layout.type_cached_keys
            flags, size, at = (self.member(address, offset) for offset in (_FLAGS, _BASIC_SIZE, _DICT_OFFSET))
            self._types[address] = _Type(flags, size, at, self.word(address + keys) if keys != NONE else 0)
        return self._types[address]

    def value(self, dictionary: int, name: str) -> int:
        """Address of the value under a name; 0 when there is none."""
        return self._find(self.entries(dictionary), name)

    def _find(self, entries: Iterable[tuple[int, int, int]], name: str) -> int:
        known, entries = self.keys.get(name), list(entries)
        if known is None:
            entries = self._alike([entry for entry in entries if entry[1]], name)
        for _, key, value in entries:
            if key == known:
                return value
            if known is None and read_text(self.memory, self.layout, key, _NAME_LIMIT) == name:
                self.keys[name] = key
                return value
        return 0

    def _alike(self, entries: list[tuple[int, int, int]], name: str) -> list[tuple[int, int, int]]:
        """Those whose keys are strings as long as the name, or could not be read with the others."""
        if len(entries) <= 2:
            return entries
        at = self.layout.unicode_length
        length = len(name).to_bytes(8, "little")
        read = self.memory.read_each([key for _, key, _ in entries], at + 8)
        return [entry for entry, data in zip(entries, read) if not data or data[at:] == length]

    def entries(self, dictionary: int) -> list[tuple[int, int, int]]:
        """(hash, key, value) of a dict; the hash is 0 where the key, a string, has it."""
        return self._entries_of(self.member(dictionary, _DICT_KEYS), self.member(dictionary, _DICT_VALUES))

    def _entries_of(self, keys: int, values: int) -> list[tuple[int, int, int]]:
        """Of PyDictKeysObject; values: those of a split table, or 0."""
        head = self.read(keys, _KEYS_HEAD_BYTES)
        if self.layout.version < (3, 11):
            size, count = _u64(head, 8), _u64(head, 32)
            width = next(
                width for width, limit in ((1, 0xFF), (2, 0xFFFF), (4, 0xFFFFFFFF), (8, size)) if size <= limit
            )
            at, has_hash = keys + 40 + size * width, True
        else:
            count, has_hash = _u64(head, 24), head[10] == _GENERAL_KEYS
            at = keys + 32 + (1 << (head[9] & 63))
        if count > _ENTRY_LIMIT:
            raise Changed
        if has_hash:
            entries = list(struct.iter_unpack("<QQQ", self.read(at, 24 * count)))
        else:
            entries = [(0, *pair) for pair in struct.iter_unpack("<QQ", self.read(at, 16 * count))]
        if values:
            values += 8 if self.layout.version >= (3, 13) else 0  # after the sizes, struct _dictvalues
            found = struct.unpack(f"<{count}Q", self.read(values, 8 * count))
            entries = [(hash_value, key, value) for (hash_value, key, _), value in zip(entries, found)]
        return [entry for entry in entries if entry[2]]

    def member(self, instance: int, offset: int) -> int:
        """A word of an object; the offset is that where the header has 16 bytes."""
        return self.word(instance + offset + self.layout.code_type - _TYPE)

    def word(self, address: int) -> int:
        """The word at an address."""
        return _u64(self.read(address, 8), 0)

    def read(self, address: int, size: int) -> bytes:
        """Bytes, all of them."""
        data = self.memory.read(address, size) if address > 0 else None
        if data is None:
            raise Changed
        return data


def _u64(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 8], "little")
