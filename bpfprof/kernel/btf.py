"""Offsets of struct members from the running kernel's own type information (/sys/kernel/btf/vmlinux).

Format: Documentation/bpf/btf.rst. The file holds some 130,000 types; only those asked for are looked at: a struct is
found by searching for its name's offset where a struct header could be, and checked by walking its members.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from bpfprof.errors import UnsupportedError

BTF_PATH = Path("/sys/kernel/btf/vmlinux")
_NOTES_PATH = Path("/sys/kernel/notes")
_BUILD_ID = struct.pack("<III4s", 4, 20, 3, b"GNU\0")  # a note of 20 bytes, NT_GNU_BUILD_ID of elf.h
_MAGIC = b"\x9f\xeb"
_KIND_STRUCT, _KIND_UNION, _KIND_TYPEDEF, _KIND_VARIABLE, _KIND_SECTION = 4, 5, 8, 14, 15
# Bytes after the 12-byte header by kind: so many, and so many for each that `vlen` counts.
_EXTRA_BYTES = {1: 4, 3: 12, 14: 4, 17: 4}
_BYTES_EACH = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
_FILE_HEADER = struct.Struct("<4xIIIII")  # magic, version and flags; then sizes and places
_HEADER = struct.Struct("<III")


def kernel_identity() -> bytes:
    """What two kernels have in common only if their types are the same: the build id, else the types themselves.

    Raises UnsupportedError when the kernel has no BTF.
    """
    with contextlib.suppress(OSError):
        notes = _NOTES_PATH.read_bytes()
        if _BUILD_ID in notes and BTF_PATH.exists():
            return notes
    return _read(BTF_PATH)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnsupportedError(
            f"this kernel gives no type information ({path}: {error.strerror})",
            "run a kernel built with CONFIG_DEBUG_INFO_BTF=y; distributions' own kernels since 2021 are",
        ) from error


class KernelTypes:
    """Struct member offsets. Raises UnsupportedError when the kernel has no BTF or lacks a struct or member."""

    def __init__(self, path: Path = BTF_PATH) -> None:
        data = _read(path)
        if data[:2] != _MAGIC or len(data) < _FILE_HEADER.size:
            raise UnsupportedError(f"{path} is not BTF")
        header, type_at, type_bytes, string_at, string_bytes = _FILE_HEADER.unpack_from(data, 0)
        self._types = data[header + type_at : header + type_at + type_bytes]
        self._strings = data[header + string_at : header + string_at + string_bytes]
        # Position, name and info of types by id, as far as they were asked for: all of them take 50 to 80 ms.
        self._index: list[tuple[int, int, int]] = [(0, 0, 0)]
        self._rest = self._headers()

    def offset(self, struct_name: str, member: str) -> int:
        """Byte offset of a member, also inside anonymous members."""
        found = self._member(self._find_struct(struct_name), member)
        if found is None:
            raise UnsupportedError(f"this kernel's struct {struct_name} has no member {member}")
        return found

    def has_name(self, name: str) -> bool:
        """Whether a type, member or enumerator has this name: the kernel knows a helper bpf_x if BPF_FUNC_x is one."""
        return self._name(name) > 0

    def parameters(self, function_pointer: str) -> int:
        """How many parameters a typedef's function has, the first (void *) of a tracepoint's included; 0: not there."""
        for position in self._places(function_pointer):
            _, info, pointer = _HEADER.unpack_from(self._types, position)
            if info == _KIND_TYPEDEF << 24 and (pointed := self._type(pointer)) is not None:
                function = self._type(_HEADER.unpack_from(self._types, pointed[0])[2])
                return function[2] & 0xFFFF if function is not None else 0
        return 0

    def percpu_distance(self, first: str, second: str) -> int:
        """Bytes from one per-CPU variable of the kernel to another; 0 when either is not there."""
        names = [self._name(name) for name in (first, second)]
        offsets, ids = self._percpu_offsets(), dict.fromkeys(names, 0)
        if not (offsets and all(names)):
            return 0
        number = 1
        while (each := self._type(number)) is not None and not all(ids.values()):  # variables come early
            _, name, info = each
            if info >> 24 & 31 == _KIND_VARIABLE and name in ids:
                ids[name] = number
            number += 1
        found = [offsets.get(ids[name], 0) for name in names]
        return found[1] - found[0] if all(found) else 0

    def _headers(self) -> Iterator[tuple[int, int, int]]:
        """Position, place of the name, and info of every type, from id 1 on."""
        unpack, types, position = _HEADER.unpack_from, self._types, 0
        while position <= len(types) - _HEADER.size:
            name, info, _ = unpack(types, position)
            yield position, name, info
            kind = info >> 24 & 31
            position += 12 + _EXTRA_BYTES.get(kind, 0) + _BYTES_EACH.get(kind, 0) * (info & 0xFFFF)

    def _name(self, text: str) -> int:
        """Where a name is among the strings; 0: nowhere."""
        return self._strings.find(b"\0" + text.encode() + b"\0") + 1

    def _places(self, name: str) -> Iterator[int]:
        """Where the header of a type of this name could be."""
        position, end = -1, len(self._types) - _HEADER.size + 4  # a whole header has to follow
        if name_offset := self._name(name):
            pattern = struct.pack("<I", name_offset)
            while (position := self._types.find(pattern, position + 1, end)) >= 0:
                if position % 4 == 0:
                    yield position

    def _percpu_offsets(self) -> dict[int, int]:
        """Type id of each per-CPU variable -> its offset; empty when there is no such section."""
        for position in self._places(".data..percpu"):
            _, info, _ = _HEADER.unpack_from(self._types, position)
            body = self._types[position + 12 : position + 12 + 12 * (info & 0xFFFF)]
            if info >> 24 == _KIND_SECTION and len(body) == 12 * (info & 0xFFFF):
                return {variable: offset for variable, offset, _ in _HEADER.iter_unpack(body)}
        return {}

    def _find_struct(self, name: str) -> int:
        for position in self._places(name):
            _, info, _ = _HEADER.unpack_from(self._types, position)
            if info >> 24 & 31 == _KIND_STRUCT and not info & 0x60FF0000 and self._plausible(position, info & 0xFFFF):
                return position
        raise UnsupportedError(f"this kernel's type information has no struct {name}")

    def _plausible(self, position: int, count: int) -> bool:
        end = position + 12 + 12 * count
        if not count or end > len(self._types):
            return False
        names = [_HEADER.unpack_from(self._types, at)[0] for at in range(position + 12, end, 12)]
        return all(name < len(self._strings) and (not name or self._strings[name - 1] == 0) for name in names)

    def _member(self, position: int, wanted: str) -> int | None:
        info: int
        _, info, _ = _HEADER.unpack_from(self._types, position)
        anonymous = []
        for at in range(position + 12, position + 12 + 12 * (info & 0xFFFF), 12):
            name, type_id, bits = _HEADER.unpack_from(self._types, at)
            offset: int = (bits & 0xFFFFFF if info >> 31 else bits) // 8
            if not name:
                anonymous.append((type_id, offset))
            elif self._strings.startswith(wanted.encode() + b"\0", name):
                return offset
        for type_id, offset in anonymous:  # last, for it takes long to find their types
            inner = self._anonymous(type_id, wanted)
            if inner is not None:
                return offset + inner
        return None

    def _type(self, number: int) -> tuple[int, int, int] | None:
        """What _headers() says of the type with this id; None: there is none."""
        index = self._index
        if number >= len(index):
            index.extend(islice(self._rest, number + 1 - len(index)))
        return index[number] if 0 < number < len(index) else None

    def _anonymous(self, type_id: int, wanted: str) -> int | None:
        found = self._type(type_id)
        if found is None or found[2] >> 24 & 31 not in (_KIND_STRUCT, _KIND_UNION):
            return None
        return self._member(found[0], wanted)
