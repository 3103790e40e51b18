"""Where the native stack of a greenlet ends: its frames in, how many of them are its own out.

A greenlet begins on top of the stack of whoever started it: `inner_bootstrap`, called by `g_initialstub`, calls its
function. While another greenlet runs, the frames of this one are kept elsewhere; when it goes on they are copied back,
and by then what lies rootward of them belongs to others or is nothing at all (greenlet, src/greenlet/TUserGreenlet.cpp
and TStackState.cpp, 3.0 to 3.5). Its Python frames are a list of their own, from its function on.

So the stack ends where as many calls of the evaluation function are passed as the Python list has runs (merge.py), at
the next frame of greenlet's library. No name is needed: distributions strip it. The frames of a greenlet that is not at
its beginning any more are never rootward of running code, but for those of a trace function (`greenlet.settrace`),
which are fewer calls than runs.

A greenlet that has no Python frame, as it just begins or has ended, is left by calls within the library alone, of which
only a name tells the beginning; without names its stack ends at the first of them.

`slp_switch` changes the stack, and calls `slp_restore_state` then; the Python frames are those of the greenlet that is
left until it returns (src/greenlet/TGreenlet.cpp, g_switchstack, 1.0 to 3.5). Both may have as many calls by chance.

Before it does, it calls `slp_save_state`, when both are of the greenlet that is left. With CPython 3.12 and later that
greenlet's Python frames are one list without entries then (expose_frames, 3.0 and later): whose call each is of is
known where its stack has one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# greenlet/_greenlet.cpython-312-x86_64-linux-gnu.so; greenlet.cpython-38-x86_64-linux-gnu.so before 1.0.
_LIBRARY = re.compile(r"(?:.*/)?_?greenlet\.(?:[\w-]+\.)?so")


def is_greenlet_library(path: str) -> bool:
    """Whether a file is the library that switches greenlets."""
    return _LIBRARY.fullmatch(path) is not None


def begins_greenlet(function: str) -> bool:
    """Of the functions of that library, with or without C++ decoration."""
    return "inner_bootstrap" in function


def is_between(names: Sequence[str]) -> bool:
    """Of the functions that run, leaf first: whether their stack may be another greenlet's than the Python frames."""
    place = names.index("slp_switch") if "slp_switch" in names else -1
    return place == 0 or (place > 0 and "slp_restore_state" in names[place - 1])


def is_saving(names: Sequence[str]) -> bool:
    """Of the functions that run, leaf first: whether they copy the stack of the greenlet that is left."""
    place = names.index("slp_switch") if "slp_switch" in names else 0
    return place > 0 and "slp_save_state" in names[place - 1]


def only_call(is_eval: Sequence[bool], is_greenlet: Sequence[bool], is_beginning: Sequence[bool]) -> int | None:
    """How many native frames, leaf first, are a greenlet's own that has one call; None: it has several, or none.

    Its beginning has to be known by name, but for the main greenlet, to which all belong.
    """
    count = own_count(is_eval, is_greenlet, is_beginning, 1, False)
    if count is None:
        return len(is_eval) if sum(is_eval) == 1 else None
    return count if is_beginning[count - 1] else None


def own_count(
    is_eval: Sequence[bool],
    is_greenlet: Sequence[bool],
    is_beginning: Sequence[bool],
    runs: int,
    may_be_unlinked: bool,
) -> int | None:
    """How many native frames, leaf first, are the greenlet's own, its beginning included; None: all.

    `runs` are those of its Python list. `may_be_unlinked`: the innermost call may have no frame in that list.
    """
    calls = 0
    for place, (is_call, is_switch) in enumerate(zip(is_eval, is_greenlet)):
        calls += is_call
        if is_switch and runs <= calls <= runs + may_be_unlinked:
            return _beginning(place, is_greenlet, is_beginning) + 1
    return None


def _beginning(place: int, is_greenlet: Sequence[bool], is_beginning: Sequence[bool]) -> int:
    """The place of the beginning, if only frames of the library are between it and this place; else this place."""
    for further in range(place, len(is_greenlet)):
        if not is_greenlet[further]:
            break
        if is_beginning[further]:
            return further
    return place
