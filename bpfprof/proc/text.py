"""Text that comes from a target, made fit for a terminal and for line-based output."""

from __future__ import annotations

# C0, DEL and C1 controls (ECMA-48), line and paragraph separators, bidirectional marks, overrides and isolates
# (UAX #9), and surrogates, which cannot be encoded to UTF-8.
_UNFIT = (
    *range(0x00, 0x20),
    *range(0x7F, 0xA0),
    *(0x061C, 0x200E, 0x200F),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)
_REMOVED: dict[int, str | None] = dict.fromkeys(_UNFIT)
_REPLACED: dict[int, str | None] = dict.fromkeys((*_UNFIT, *range(0xD800, 0xE000)), "\ufffd")


def without_controls(raw: bytes) -> str:
    """Decode UTF-8, undecodable bytes as U+FFFD, and drop control characters."""
    return raw.decode("utf-8", errors="replace").translate(_REMOVED)


def with_controls_replaced(text: str) -> str:
    """The same text with each control character and lone surrogate as U+FFFD, so positions and lengths stay."""
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_REPLACED)


def printable_lines(text: str) -> str:
    """The same of each line."""
    return "\n".join(with_controls_replaced(line) for line in text.split("\n"))
