"""What a caller may ask of a renderer; every format reads the fields that mean something to it."""

from __future__ import annotations

from dataclasses import dataclass

GROUPINGS = ("stack", "reason", "thread", "function", "waker", "lock")  # of waits


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Choices that change how a profile is written, never what it holds."""

    function_only: bool = False  # no line numbers; frames that differ only in line become one
    full_filenames: bool = False  # whole paths instead of the shortest unambiguous tail
    title: str = ""  # heading of the flame graph and name of the speedscope file; "" chooses one
    by: str = "stack"  # what waits of one group have in common: GROUPINGS
    limit: int = 10  # groups shown
    waker_depth: int = 2  # how many wakers one after the other
    hide_idle: bool = False  # no groups of threads that have nothing to do
    ascii_only: bool = False  # nothing but ASCII of its own; names stay as they are
