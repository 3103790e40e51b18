"""A recording -> its calls of libraries, added up by thread and function."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.known.waiting import LAUNCH, kind_of
from bpfprof.model.calls import DIRECTIONS, CallFlag
from bpfprof.model.grouping import group_numbers
from bpfprof.model.profile import PROFILE_CALL_DTYPE
from bpfprof.profile.weights import Rows
from bpfprof.recording.contents import Recording

_LONGEST = 200  # letters of a function
_KEYS = ("thread", "function", "direction", "flags")
_SUMS = ("count", "total_ns", "bytes", "lengths")


def has_launches(recording: Recording) -> bool:
    """Whether calls that hand work to a device were counted."""
    used = np.unique(recording.calls["function"]).tolist()
    return any(kind_of(recording.texts[text][:_LONGEST], "lib") == LAUNCH for text in used)


def profile_calls(recording: Recording, has_thread: npt.NDArray[np.bool_]) -> tuple[Rows, tuple[str, ...]]:
    """(rows of PROFILE_CALL_DTYPE, names of functions), of these threads."""
    rows, numbers = recording.calls, dict[str, int]()
    if not len(rows):
        return np.zeros(0, PROFILE_CALL_DTYPE), ()
    used, place = np.unique(rows["function"], return_inverse=True)
    number_of = [numbers.setdefault(recording.texts[text][:_LONGEST], len(numbers)) for text in used.tolist()]
    columns = {**{name: rows[name] for name in _KEYS}, "function": np.array(number_of)[place]}
    columns["direction"] = np.where(rows["direction"] < len(DIRECTIONS), rows["direction"], 0)
    columns["flags"] = rows["flags"] & np.uint8(CallFlag.INSIDE | CallFlag.OPEN)
    shown = has_thread[rows["thread"]]
    columns = {name: column[shown] for name, column in columns.items()}
    first, group = group_numbers(columns.values())
    found = np.zeros(len(first), PROFILE_CALL_DTYPE)
    for name, column in columns.items():
        found[name] = column[first]
    for name in _SUMS:
        np.add.at(found[name], group, rows[name][shown])
    np.maximum.at(found["max_ns"], group, rows["max_ns"][shown])
    return found, tuple(numbers)
