"""What a caller may ask of a renderer; every format reads the fields that mean something to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Choices that change how a profile is written, never what it holds."""

    function_only: bool = False  # no line numbers; frames that differ only in line become one
    full_filenames: bool = False  # whole paths instead of the shortest unambiguous tail
    title: str = ""  # heading of the flame graph and name of the speedscope file; "" chooses one
