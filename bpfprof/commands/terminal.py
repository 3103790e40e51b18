"""The terminal that text is for: its size, and whether it takes colours."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TextIO

from bpfprof.commands.outputs import shows_utf8
from bpfprof.render.formats import RenderOptions

CLEAR_LINE = "\r\x1b[K"
_ELSEWHERE = os.terminal_size((100, 24))  # in a pipe or a file


def for_terminal(look: RenderOptions, stream: TextIO, used_rows: int = 0) -> RenderOptions:
    """The same for what is shown on the stream; used_rows: what else is to stand on the screen, beside the prompt."""
    size, is_terminal = _ELSEWHERE, stream.isatty()
    if is_terminal:
        size = terminal_size(stream)
    given = os.environ.get("COLUMNS", "")
    columns = int(given) if given.isdecimal() and len(given) < 5 else size.columns
    rows = (size.lines or _ELSEWHERE.lines) - is_terminal - used_rows
    has_color = is_terminal and acts_on_codes() and not os.environ.get("NO_COLOR")
    return replace(
        look, columns=columns or _ELSEWHERE.columns, rows=rows, has_color=has_color, ascii_only=not shows_utf8()
    )


def terminal_size(stream: TextIO) -> os.terminal_size:
    """Of the terminal that the stream is; of one that was closed meanwhile that of a pipe."""
    with contextlib.suppress(OSError):
        return os.get_terminal_size(stream.fileno())
    return _ELSEWHERE


def acts_on_codes() -> bool:
    """Whether a terminal does more than to show text."""
    return os.environ.get("TERM", "dumb") != "dumb"
