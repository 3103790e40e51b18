"""Reads `ebpf/abi.h`, the one place where a layout shared with the kernel side is written.

Out come the layouts of structs (`LAYOUTS`), enums (`ENUMS`), their comments (`COMMENTS`) and numbers (`CONSTANTS`:
defines and enumerators), made once when the module is imported. The parser knows just the C that abi.h promises to use
and refuses anything else. `abi.dtypes` has the same layouts for numpy; this module does without, for it is needed
before anything that takes long to import.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

# C type -> letter of the struct module and of numpy
SCALARS = {
    "__u8": "B",
    "__u16": "H",
    "__u32": "I",
    "__u64": "Q",
    "__s8": "b",
    "__s16": "h",
    "__s32": "i",
    "__s64": "q",
}


class Field(NamedTuple):
    """One field: `type_name` is a scalar's C name or another struct's; `length` 0 for what is no array."""

    name: str
    type_name: str
    length: int


_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_DEFINE = re.compile(r"^#define (\w+) (\d+)\s*$", re.MULTILINE)
_ENUM = re.compile(r"^enum (\w+) \{(.*?)^\};", re.DOTALL | re.MULTILINE)
_ENUMERATOR = re.compile(r"(\w+) = (\d+),[ \t]*(?:/\* (.*?) \*/)?", re.DOTALL)
_STRUCT = re.compile(r"struct (\w+) \{(.*?)\};", re.DOTALL)
_FIELD = re.compile(r"(?:struct )?(\w+) (\w+)(?:\[(\w+)\])?;")


def ebpf_directory() -> Path:
    """The kernel-side sources: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_ebpf"
    return installed if installed.is_dir() else package.parent / "ebpf"


def _refuse(where: str, rest: str) -> None:
    if rest.strip():
        raise ValueError(f"abi.h: {where}: not understood: {rest.strip()}")


def _parse_enums(text: str) -> tuple[dict[str, type[IntEnum]], dict[str, str]]:
    enums: dict[str, type[IntEnum]] = {}
    comments: dict[str, str] = {}
    for name, body in _ENUM.findall(text):
        _refuse(f"enum {name}", _COMMENT.sub("", _ENUMERATOR.sub("", body)))
        members = [(key, int(value)) for key, value, _ in _ENUMERATOR.findall(body)]
        comments.update({key: comment for key, _, comment in _ENUMERATOR.findall(body) if comment})
        enums[name] = cast(type[IntEnum], IntEnum(name, members))
    return enums, comments


def _parse_structs(text: str, constants: dict[str, int]) -> dict[str, tuple[Field, ...]]:
    structs: dict[str, tuple[Field, ...]] = {}
    for name, body in _STRUCT.findall(_COMMENT.sub("", text)):
        _refuse(f"struct {name}", _FIELD.sub("", body))
        fields = []
        for type_name, field, count in _FIELD.findall(body):
            if type_name not in SCALARS and type_name not in structs:
                raise ValueError(f"abi.h: struct {name}: no type {type_name}")
            length = 0 if not count else constants[count] if count in constants else int(count)
            fields.append(Field(field, type_name, length))
        structs[name] = tuple(fields)
    return structs


_TEXT = (ebpf_directory() / "abi.h").read_text()
_BARE_TEXT = _COMMENT.sub("", _TEXT)
_refuse("file", _STRUCT.sub("", _ENUM.sub("", _DEFINE.sub("", _BARE_TEXT))).replace("#pragma once", ""))
CONSTANTS: dict[str, int] = {name: int(value) for name, value in _DEFINE.findall(_BARE_TEXT)}
ENUMS, COMMENTS = _parse_enums(_TEXT)
CONSTANTS |= {member.name: int(member) for enum in ENUMS.values() for member in enum}
LAYOUTS = _parse_structs(_TEXT, CONSTANTS)

Status = ENUMS["bp_status"]
ThreadState = ENUMS["bp_thread_state"]
EventKind = ENUMS["bp_event_kind"]
ProcessFlags = ENUMS["bp_process_flags"]
ConfigFlags = ENUMS["bp_config_flags"]


@cache
def field_codes(name: str) -> list[tuple[str, str]]:
    """(field, code of the struct module) of each field; all padding is explicit, so none is added."""
    codes = []
    for field in LAYOUTS[name]:
        scalar = SCALARS.get(field.type_name)
        if scalar is None:
            codes.append((field.name, f"{size(field.type_name) * max(1, field.length)}s"))
        else:
            codes.append((field.name, f"{field.length}{scalar}" if field.length else scalar))
    return codes


def size(name: str) -> int:
    """Bytes of a struct."""
    return struct.calcsize("<" + "".join(code for _, code in field_codes(name)))


def pack(name: str, **values: int | bytes) -> bytes:
    """A struct from its fields, those left out 0. Raises KeyError for a field there is not."""
    parts = [
        packed.pack(values.pop(field)) if field in values else nothing for field, packed, nothing in _packing(name)
    ]
    if values:
        raise KeyError(f"struct {name} has no {', '.join(values)}")
    return b"".join(parts)


@cache
def _packing(name: str) -> list[tuple[str, struct.Struct, bytes]]:
    """(field, how it is packed, what it is as 0) of each field"""
    fields = [(field, struct.Struct(f"<{code}")) for field, code in field_codes(name)]
    return [(field, packed, bytes(packed.size)) for field, packed in fields]


def status_text(status: int) -> str:
    """The sentence for a status; it is the comment beside it in abi.h."""
    return COMMENTS.get(Status(status).name, Status(status).name)
