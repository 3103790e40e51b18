"""Reads `ebpf/abi.h`, the one place where a layout shared with the kernel side is written.

Out come numpy dtypes (`STRUCTS`), enums (`ENUMS`), their comments (`COMMENTS`) and numbers (`CONSTANTS`: defines and
enumerators), made once when
the module is imported. The parser knows just the C that abi.h promises to use and refuses anything else.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import cast

import numpy as np

from bpfprof.paths import ebpf_directory

_SCALARS = {
    f"__{sign}{bits}": f"<{code}{bits // 8}" for sign, code in (("u", "u"), ("s", "i")) for bits in (8, 16, 32, 64)
}
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_DEFINE = re.compile(r"^#define (\w+) (\d+)\s*$", re.MULTILINE)
_ENUM = re.compile(r"^enum (\w+) \{(.*?)^\};", re.DOTALL | re.MULTILINE)
_ENUMERATOR = re.compile(r"(\w+) = (\d+),[ \t]*(?:/\* (.*?) \*/)?", re.DOTALL)
_STRUCT = re.compile(r"struct (\w+) \{(.*?)\};", re.DOTALL)
_FIELD = re.compile(r"(?:struct )?(\w+) (\w+)(?:\[(\w+)\])?;")


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


def _parse_structs(text: str, constants: dict[str, int]) -> dict[str, np.dtype[np.void]]:
    structs: dict[str, np.dtype[np.void]] = {}
    for name, body in _STRUCT.findall(_COMMENT.sub("", text)):
        _refuse(f"struct {name}", _FIELD.sub("", body))
        fields: list[tuple[str, object, tuple[int, ...]]] = []
        for type_name, field, count in _FIELD.findall(body):
            length = () if not count else (constants[count] if count in constants else int(count),)
            fields.append((field, _SCALARS.get(type_name) or structs[type_name], length))
        # align=True gives the C layout; that no padding is implied is what the test of this module checks.
        structs[name] = np.dtype(fields, align=True)
    return structs


_TEXT = (ebpf_directory() / "abi.h").read_text()
_BARE_TEXT = _COMMENT.sub("", _TEXT)
_refuse("file", _STRUCT.sub("", _ENUM.sub("", _DEFINE.sub("", _BARE_TEXT))).replace("#pragma once", ""))
CONSTANTS: dict[str, int] = {name: int(value) for name, value in _DEFINE.findall(_BARE_TEXT)}
ENUMS, COMMENTS = _parse_enums(_TEXT)
CONSTANTS |= {member.name: int(member) for enum in ENUMS.values() for member in enum}
STRUCTS = _parse_structs(_TEXT, CONSTANTS)

Status = ENUMS["bp_status"]
ThreadState = ENUMS["bp_thread_state"]
EventKind = ENUMS["bp_event_kind"]
ProcessFlags = ENUMS["bp_process_flags"]
ConfigFlags = ENUMS["bp_config_flags"]
EVENT_DTYPE = STRUCTS["bp_event"]
STACK_DTYPE = STRUCTS["bp_stack"]
PYTHON_FRAME_DTYPE = STRUCTS["bp_python_frame"]
PROCESS_DTYPE = STRUCTS["bp_process"]
THREAD_DTYPE = STRUCTS["bp_thread"]
CONFIG_DTYPE = STRUCTS["bp_config"]


def status_text(status: int) -> str:
    """The sentence for a status; it is the comment beside it in abi.h."""
    return COMMENTS.get(Status(status).name, Status(status).name)
