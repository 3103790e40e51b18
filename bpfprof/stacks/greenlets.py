"""Where the native stack of a greenlet ends: its frames in, how many of them are its own out.

A greenlet begins on top of the stack of whoever started it: `inner_bootstrap`, called by `g_initialstub`, calls its
function. While another greenlet runs, the frames of this one are kept elsewhere; when it goes on they are copied back,
and by then what lies rootward of them belongs to others or is nothing at all (greenlet, src/greenlet/TUserGreenlet.cpp
and TStackState.cpp, 3.0 to 3.5). Its Python frames are a list of their own, from its function on.

So the stack ends where as many calls of the evaluation function are passed as the Python list has runs (merge.py), at
the next frame of greenlet's library. No name is needed: distributions strip it. The frames of a greenlet that is not at
its beginning any more are never rootward of running code, but for those of a trace function (`greenlet.settrace`),
which are fewer calls than runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# greenlet/_greenlet.cpython-312-x86_64-linux-gnu.so; greenlet.cpython-38-x86_64-linux-gnu.so before 1.0.
_LIBRARY = re.compile(r"(?:.*/)?_?greenlet\.(?:[\w-]+\.)?so")


def is_greenlet_library(path: str) -> bool:
    """Whether a file is the library that switches greenlets."""
    return _LIBRARY.fullmatch(path) is not None


def own_count(is_eval: Sequence[bool], is_greenlet: Sequence[bool], runs: int, may_be_unlinked: bool) -> int | None:
    """How many native frames, leaf first, are the greenlet's own, its beginning included; None: all.

    `runs` are those of its Python list. `may_be_unlinked`: the innermost call may have no frame in that list.
    """
    calls = 0
    for place, (is_call, is_switch) in enumerate(zip(is_eval, is_greenlet)):
        calls += is_call
        if is_switch and runs <= calls <= runs + may_be_unlinked:
            return place + 1
    return None
