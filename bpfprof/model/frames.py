"""A frame as a person reads it: a Python, native or kernel function, or a mark that says why there is none."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

from bpfprof.dataclass import dataclass


class FrameKind(IntEnum):
    """What a frame stands for; renderers choose text and look by it."""

    PYTHON = 0  # name = qualified name, file = co_filename, line = line being executed
    NATIVE = 1  # name = demangled symbol or "" when unknown, file = path of the object, offset = address in the object
    INLINED = 2  # as NATIVE, inlined into its caller
    KERNEL = 3  # name = kernel symbol
    WAIT = 4  # leaf: name = reason of the wait ("lock", "syscall ioctl", ...)
    RUNQUEUE = 5  # leaf: runnable, waiting for a CPU
    TRUNCATED = 6  # first frame of a stack that was not walked to its root: name = reason
    NOT_SAMPLED = 7  # CPU time of a thread (exact, from the scheduler) in which no sample fell
    SHORT_WAITS = 8  # first frame of the waits of a thread that were too short to have a stack
    WOKEN_BY = 9  # in stacks of wakers: name = who, its frames follow, leaf first
    AWAIT = 10  # leaf of an asyncio task: name = what it waits for


@dataclass(frozen=True)
class Frame:
    """One frame. `line` is 1-based, 0 when unknown; `offset` is only used by native frames without a name."""

    kind: FrameKind
    name: str = ""
    file: str = ""
    line: int = 0
    offset: int = 0
    source: str = ""  # of a native frame: the file that `line` is in


COLLECTION = "<GC>"  # name of the native frame that stands for a collection of garbage


@lru_cache(1 << 12)
def mark(kind: FrameKind, name: str = "") -> Frame:
    """A frame of a kind that has nothing but a name, mostly the same object for the same one."""
    return Frame(kind, name)
