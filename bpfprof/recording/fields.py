"""The JSON fields of a recording and what each must be. docs/recording-format.md tells what they mean.

A value in, the value as the reader keeps it out; ValueError for any other type or a number out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WHOLE_LIMIT = 1 << 62  # nanoseconds of 146 years: two of them can be added or subtracted as int64
Check = Callable[[Any], Any]


def whole(value: Any) -> int:
    """An integer from 0 to WHOLE_LIMIT."""
    if type(value) is not int or not 0 <= value < WHOLE_LIMIT:
        raise ValueError(f"{str(value)[:30]!r} is not a whole number")
    return value


def text(value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:30]!r} is not a text")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{str(value)[:30]!r} is neither true nor false")
    return value


def _list_of(check: Check) -> Check:
    def check_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError(f"{str(value)[:30]!r} is not a list")
        return [check(item) for item in value]

    return check_list


def _map_of(check: Check) -> Check:
    def check_map(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"{str(value)[:30]!r} is not an object")
        return {str(key): check(item) for key, item in value.items()}

    return check_map


def _pair_or_null(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    first, second = _list_of(whole)(value)
    return first, second


FIELDS: dict[str, dict[str, Check]] = {
    "start": {
        "bpfprof_version": text,
        "start_ns": whole,
        "started_unix_ns": whole,
        "host_name": text,
        "kernel_release": text,
        "rate_hz": whole,
        "event": text,
        "mode": text,
        "native": _truth,
        "min_block_us": whole,
        "target_pids": _list_of(whole),
        "status_texts": _map_of(text),
    },
    "processes": {
        "index": whole,
        "pid": whole,
        "name": text,
        "command_line": _list_of(text),
        "python": _pair_or_null,
        "python_version": text,
        "entry_marks_from": whole,
        "shim_is_python": _truth,
        "gil": _pair_or_null,
        "is_kernel_thread": _truth,
        "note": text,
    },
    "threads": {"index": whole, "process": whole, "tid": whole, "first_ns": whole, "name": text},
    "wakers": {
        "index": whole,
        "thread": whole,
        "pid": whole,
        "tid": whole,
        "process_name": text,
        "name": text,
    },
    "files": {"index": whole, "kind": text, "path": text, "build_id": text, "note": text},
    "end": {
        "end_ns": whole,
        "own_cpu_ns": whole,
        "lost": _map_of(whole),
        "codes_unverified": whole,
        "codes_replaced": whole,
        "problems": _map_of(whole),
    },
    "accounting": {
        "pid": whole,
        "tid": whole,
        "process_name": text,
        "name": text,
        "wall_ns": whole,
        "on_cpu_ns": whole,
        "runqueue_ns": whole,
        "off_cpu_ns": whole,
        "off_by_reason_ns": _map_of(whole),
    },
}
TEXTS = _list_of(text)
# Of a code object, in the order of its row.
CODE_COLUMNS: dict[str, Check] = {
    "process": whole,
    "filename": text,
    "qualname": text,
    "first_line": whole,
    "reason": text,
}


def checked(kind: str, values: Any) -> dict[str, Any]:
    """The fields of one chunk or row of a kind; those this version does not know stay as they are."""
    if not isinstance(values, dict):
        raise ValueError(f"{str(values)[:30]!r} is not an object")
    known = FIELDS[kind]
    return {name: known[name](value) if name in known else value for name, value in values.items()}
