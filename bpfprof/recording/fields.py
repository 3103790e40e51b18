"""The JSON fields of a recording and what each must be, by the annotations in `tables`.

A value in, the value as the reader keeps it out; ValueError for any other type or a number out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional, get_args, get_origin, get_type_hints

from bpfprof.recording import tables

WHOLE_LIMIT = 1 << 62  # nanoseconds of 146 years: two of them can be added or subtracted as int64
Check = Callable[[Any], Any]


def _whole(value: Any) -> int:
    """An integer from 0 to WHOLE_LIMIT."""
    if type(value) is not int or not 0 <= value < WHOLE_LIMIT:
        raise ValueError(f"{str(value)[:30]!r} is not a whole number")
    return value


def _plain(kind: type[Any] | tuple[type[Any], ...], what: str) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise ValueError(f"{str(value)[:30]!r} is {what}")
        return value

    return check


_TEXT, _LIST = _plain(str, "not a text"), _plain(list, "not a list")
_OBJECT, _PAIR = _plain(dict, "not an object"), _plain((list, tuple), "not a pair")
_PLAIN: dict[Any, Check] = {int: _whole, str: _TEXT, bool: _plain(bool, "neither true nor false")}


def _check_of(kind: Any) -> Check:
    """What checks a value of this annotation."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == Optional[tuple[int, int]]:
        return _pair_or_null
    item = _check_of(get_args(kind)[-1])
    if get_origin(kind) is list:
        return lambda value: [item(each) for each in _LIST(value)]
    return lambda value: {str(key): item(each) for key, each in _OBJECT(value).items()}


def _pair_or_null(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    first, second = map(_whole, _PAIR(value))
    return first, second


def _checks(content: type[Any]) -> dict[str, Check]:
    return {name: _check_of(kind) for name, kind in get_type_hints(content).items() if kind is not bytes}


# Chunk kind -> type of a row of the table, which is an attribute of Recording by the name of the kind.
TABLES: dict[str, type[Any]] = {
    "processes": tables.RecordedProcess,
    "threads": tables.RecordedThread,
    "tasks": tables.RecordedTask,
    "files": tables.RecordedFile,
    "wakers": tables.RecordedWaker,
    "objects": tables.RecordedObject,
    "last_waits": tables.RecordedLastWait,
}
FIELDS: dict[str, dict[str, Check]] = {
    "start": _checks(tables.Start),
    "end": _checks(tables.End),
    **{kind: {"index": _whole, **_checks(row)} for kind, row in TABLES.items()},
}
TEXTS = _check_of(list[str])
CODE_COLUMNS = _checks(tables.RecordedCode)  # in the order of a row


def checked(kind: str, values: Any) -> dict[str, Any]:
    """The fields of one chunk or row of a kind; those this version does not know stay as they are."""
    known = FIELDS[kind]
    return {name: known[name](value) if name in known else value for name, value in _OBJECT(values).items()}
