"""Memory that was freed, given back to the system."""

from __future__ import annotations

import contextlib
import ctypes


def give_back_freed() -> None:
    """Also what lies between blocks in use, which glibc keeps (malloc_trim(3)); it takes some milliseconds."""
    with contextlib.suppress(AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)
