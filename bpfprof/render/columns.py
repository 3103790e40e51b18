"""Text for a terminal: columns, where some characters are two wide; nanoseconds and shares as a person reads them."""

from __future__ import annotations

import functools
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence

COLUMNS = 100  # of every table
_JOINER = "\u200d"
_NO_WIDTH = {_JOINER, "\u200b", "\u200c", "\u2060", "\ufeff"}


def shortened(text: str, columns: int = COLUMNS) -> str:
    """The text, cut to so many columns; a cut is marked."""
    if width(text) <= columns:
        return text
    used = 0
    for place, char_columns in enumerate(_widths(text)):
        used += char_columns
        if used > columns - 1:
            return text[:place] + "…"
    return text + "…"


def cut_left(text: str, columns: int) -> str:
    """The same from the left: the end of a path or of a qualified name tells more than its beginning."""
    if width(text) <= columns:
        return text
    used, widths = 0, list(_widths(text))
    for place in range(len(text) - 1, -1, -1):
        used += widths[place]
        if used > columns - 1:
            place += 1
            while place < len(text) and not widths[place]:  # what would stand on the mark
                place += 1
            return "…" + text[place:]
    return "…" + text


def middle_cut(text: str, columns: int) -> str:
    """The same in the middle of a file's name: what it begins with and the line tell more."""
    name, colon, line = text.rpartition(":")
    if width(text) <= columns or not colon or width(line) + 4 > columns:
        return shortened(text, columns)
    return shortened(name, columns - width(line) - 1) + colon + line


def padded(text: str, columns: int) -> str:
    """The text with spaces up to so many columns."""
    return text + " " * (columns - width(text))


def width(text: str) -> int:
    """Columns that the text takes."""
    if text.isascii():
        return len(text)
    return sum(_widths(text))


def _widths(text: str) -> Iterator[int]:
    """For each character. One after a joiner is a part of the picture before it, where a terminal knows the picture."""
    before = ""
    for char in text:
        yield 0 if before == _JOINER else _width(char)
        before = char


@functools.lru_cache(4096)
def _width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me") or char in _NO_WIDTH or "\u1160" <= char <= "\u11ff":
        return 0  # accents, and vowels and finals of Hangul, which stand on the character before
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def filled(parts: Sequence[str], columns: int = COLUMNS, indent: str = "") -> list[str]:
    """Lines of the parts with spaces between them, as many on each as fit; `indent` from the second line on."""
    lines = [*parts[:1]]
    for part in parts[1:]:
        if width(f"{lines[-1]} {part}") <= columns:
            lines[-1] += f" {part}"
        else:
            lines.append(indent + part)
    return lines


def wrapped(text: str, indent: str) -> list[str]:
    """Lines of one paragraph, those after the first indented."""
    return textwrap.wrap(text, COLUMNS, subsequent_indent=indent)


def duration_text(ns: int) -> str:
    """`1.234 s`, `12.30 ms`, `4.5 us`, `120 ns`: about four digits, the unit that fits."""
    size = abs(ns)
    if size >= 999_950_000:
        return f"{ns / 1e9:.3f} s" if size < 100_000_000_000 else f"{ns / 1e9:.1f} s"
    if size >= 999_950:
        return f"{ns / 1e6:.2f} ms" if size < 100_000_000 else f"{ns / 1e6:.1f} ms"
    return f"{ns / 1e3:.1f} us" if size >= 1000 else f"{ns} ns"


def seconds_text(ns: int) -> str:
    """Seconds without the unit, at most 7 characters below 116 days."""
    seconds = ns / 1e9
    digits = 3 if seconds < 999.9995 else 1 if seconds < 99_999.95 else 0
    return f"{seconds:.{digits}f}"


def short_seconds(ns: int) -> str:
    """`6.55`, `0.003`, `123`, at most 6 characters; `-` of nothing."""
    seconds = ns / 1e9
    if not ns:
        return "-"
    return f"{seconds:.3f}" if seconds < 1 else f"{seconds:.2f}" if seconds < 100 else f"{seconds:.0f}"


def percent_text(part: int, whole: int, digits: int = 2) -> str:
    """`12.34%`, or `-` of nothing; only the whole reads 100%, only nothing reads 0%."""
    if whole <= 0:
        return "-"
    text = f"{100 * part / whole:.{digits}f}"
    step = 10.0**-digits
    if float(text) == 100 and part != whole:
        return f">{100 - step:.{digits}f}%" if part < whole else f"<{100 + step:.{digits}f}%"
    if float(text) == 0 and part > 0:
        return f"<{step:.{digits}f}%"
    return f"{text}%"
