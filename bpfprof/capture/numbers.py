"""Numbers of the kernel side to those of the recording: statuses, states and flags by name, ids by what is known."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, IntFlag
from typing import Protocol

import numpy as np

from bpfprof import abi
from bpfprof import array_types as npt
from bpfprof.model.samples import ThreadFlag, WakerKind
from bpfprof.model.statuses import LastState, NativeFlag, Status

_MANY = 512  # from here on finding the distinct ones first is quicker
_NO_STACK_TEXTS = {  # of statuses that the kernel side does not have
    Status.STACK_LOST: abi.COMMENTS["BP_LOST_STACK_RING_FULL"],
    Status.SHORT_WAIT: "short wait, added up with others",
}


def _by_name(enum: str, prefix: str, numbers: type[IntEnum], default: int = 0) -> npt.NDArray[np.uint8]:
    """For each number of an enum of abi.h the one that has the same name in the recording."""
    table = np.full(256, default, np.uint8)
    for member in abi.ENUMS[enum]:
        name = member.name.removeprefix(prefix)
        if name in numbers.__members__:
            table[member] = numbers[name]
    return table


def _flags_by_name(enum: str, prefix: str, flags: type[IntFlag]) -> npt.NDArray[np.uint8]:
    """The same for flags that are added up."""
    table = np.zeros(256, np.uint8)
    for member in abi.ENUMS[enum]:
        table[np.arange(256) & int(member) > 0] |= flags[member.name.removeprefix(prefix)].value
    return table


# Tables by which columns are translated. What counts a loss is the status of a stack that was lost.
STATUS = _by_name("bp_status", "BP_", Status, Status.STACK_LOST)
NATIVE_FLAGS = _flags_by_name("bp_native_flags", "BP_NATIVE_", NativeFlag)
TRANSLATED = {
    "status": STATUS,
    "state": _by_name("bp_thread_state", "BP_THREAD_", LastState),
    "waker_kind": _by_name("bp_waker_kind", "BP_WAKER_", WakerKind),
    "flags": _flags_by_name("bp_gil_flags", "BP_", ThreadFlag),
}


def status_texts() -> dict[str, str]:
    """The sentence for each status of the recording."""
    return {str(int(each)): abi.COMMENTS.get(f"BP_{each.name}") or _NO_STACK_TEXTS[each] for each in Status}


class Lookup(Protocol):
    """Like a dictionary of numbers."""

    def get(self, key: int, default: int, /) -> int: ...


def look_up(keys: npt.NDArray[np.integer], value_of_key: Lookup, missing: int) -> npt.NDArray[np.int64]:
    """The value of each key, `missing` where there is none."""
    if len(keys) < _MANY:
        return np.array([value_of_key.get(key, missing) for key in keys.tolist()], np.int64)
    return by_distinct(keys, lambda key: value_of_key.get(key, missing))


def by_distinct(keys: npt.NDArray[np.integer], value_of: Callable[[int], int]) -> npt.NDArray[np.int64]:
    """The value of each key; each distinct one is asked for once."""
    if len(keys) < _MANY:
        listed = keys.tolist()
        values = {key: value_of(key) for key in dict.fromkeys(listed)}
        return np.array([values[key] for key in listed], np.int64)
    unique, inverse = np.unique(keys, return_inverse=True)
    return np.array([value_of(key) for key in unique.tolist()], np.int64)[inverse]
