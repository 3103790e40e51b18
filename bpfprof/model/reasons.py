"""What a thread waited for: a number for each reason of the text contract, and its word."""

from __future__ import annotations

from bpfprof.model.syscalls import syscall_name, syscall_numbers

# The first is the reason of what is no wait.
_WORDS = [
    "",
    "gil",
    "lock",
    "sleep",
    "disk",
    "net",
    "pipe",
    "poll",
    "child",
    "device",
    "pagefault",
    "stopped",
    "unknown",
]
SYSCALL_REASONS = 1000  # reason of a wait without a better word: the number of its system call above this


def reason_number(text: str) -> int:
    """The number of a word of reason_text(). Raises ValueError for one there is not."""
    if text.startswith("syscall "):
        return SYSCALL_REASONS + next(iter(syscall_numbers(text.removeprefix("syscall "))))
    return _WORDS.index(text)


def reason_text(reason: int) -> str:
    """The word of the text contract for a reason; "" for what is no wait."""
    if reason >= SYSCALL_REASONS:
        return f"syscall {syscall_name(reason - SYSCALL_REASONS)}"
    return _WORDS[reason]
