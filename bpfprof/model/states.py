"""What a thread was doing, how that is known, and what it waited for.

Apart from spans.py, which needs numpy: that takes 40 ms to import.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from bpfprof.model.reasons import REASONS
from bpfprof.model.syscalls import syscall_name, syscall_numbers

_WORDS = ["", *(reason.word for reason in REASONS)]  # the first is the reason of what is no wait
WAIT_REASONS = tuple(_WORDS[1:])
# What an asyncio task waits for; ready: it could go on, but its event loop has not come to it; future: anything else.
AWAIT_REASONS = ("ready", "sleep", "socket", "lock", "queue", "task", "executor", "child", "future")
SYSCALL_REASONS = 1000  # reason of a wait without a better word: the number of its system call above this


class ThreadState(IntEnum):
    """What a thread was doing; every nanosecond of a thread is in exactly one."""

    ON_CPU = 0
    RUNQUEUE = 1
    OFF_CPU = 2
    UNKNOWN = 3  # what tells of this time was lost


class How(IntEnum):
    """How the time is known."""

    SEEN = 0  # by an event of its own; CPU time: shared out over the samples
    SUMMED = 1  # waits that were added up: how long is exact, when within the time between other rows is not
    ESTIMATED = 2  # seen, and chosen at random to speak for others like it too


class SpanFlag(IntFlag):
    """Added up."""

    HOLDS_GIL = 1  # of its interpreter, when the span began
    IDLE = 2  # the thread waited for work
    HIDDEN = 4  # in a profile: not asked for, but it may tell who ended a wait that was


def reason_number(text: str) -> int:
    """The number of a word of reason_text(). Raises ValueError for one there is not."""
    if text.startswith("syscall "):
        return SYSCALL_REASONS + next(iter(syscall_numbers(text.removeprefix("syscall "))))
    return _WORDS.index(text)


def is_reason(text: str) -> bool:
    """Whether it is a word of a wait of threads."""
    return text in _WORDS


def reason_text(reason: int) -> str:
    """The word of the text contract for a reason; "" for what is no wait."""
    if reason >= SYSCALL_REASONS:
        return f"syscall {syscall_name(reason - SYSCALL_REASONS)}"
    return _WORDS[reason]
