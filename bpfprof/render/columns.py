"""Text in columns of a terminal, where some characters are two wide."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence

COLUMNS = 100  # of every table


def shortened(text: str, columns: int = COLUMNS) -> str:
    """The text, cut to so many columns; a cut is marked."""
    if width(text) <= columns:
        return text
    text = text[: max(columns - 1, 0)]
    while text and width(text) > columns - 1:
        text = text[:-1]
    return text + "…"


def padded(text: str, columns: int) -> str:
    """The text with spaces up to so many columns."""
    return text + " " * (columns - width(text))


def width(text: str) -> int:
    """Columns that the text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def packed(parts: Sequence[str], columns: int) -> list[str]:
    """Lines of the parts with commas between them, as many on each as fit; a part is cut if it has to be."""
    lines: list[str] = []
    for number, part in enumerate(parts):
        part = shortened(part, columns - 1) + "," * (number + 1 < len(parts))
        if lines and width(f"{lines[-1]} {part}") <= columns:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines


def wrapped(text: str, indent: str) -> list[str]:
    """Lines of one paragraph, those after the first indented."""
    return textwrap.wrap(text, COLUMNS, subsequent_indent=indent)
