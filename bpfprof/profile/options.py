"""What a caller may ask of a profile; see `build_profile`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Choices that change what a profile holds."""

    with_timeline: bool = False  # keep the order in time
    with_waits: bool = False  # keep each wait, with its waker
    show_interpreter: bool = False  # CPython's own functions stay in the stacks
    gil_only: bool = False  # only what was done while holding the GIL
