"""docs/interpreters.md: rows and what was measured of them in, the text out."""

from __future__ import annotations

import datetime
import platform
from math import floor

from tests.oracles.interpreters.judges import Tally
from tests.oracles.interpreters.measure import Figures
from tests.oracles.interpreters.rows import Row

# What each column must have at least, in percent.
BARS = {"functions": 100.0, "lines": 100.0, "entries": 100.0, "gil": 95.0, "whole": 99.5, "order": 98.0}
HEADER = (
    "interpreter",
    "version and build",
    "how it was had",
    "functions right",
    "lines right",
    "entry marks right",
    "GIL",
    "stacks complete",
    "order right",
)
_HEAD = """# Interpreters

What bpfprof has right of each interpreter. This page is written by `make interpreters`, which records known programs
on each for {seconds} seconds at {rate} Hz (tests/oracles/interpreters). Percentages are rounded down; **bold** ones
miss their bar. Where there are two, the first is of samples on a CPU and the second of waits off it, with how many.

Measured on {date}, Linux {kernel}, {machine}.

"""
_NOTES = """
- *Functions* and *lines* (bar: 100%): stacks of `tests/programs/deep.py`, up to 700 frames of recursion, generators,
  coroutines and odd callables, in which every function, or function and line, is the one that the program told.
- *Entry marks* (100%): Python frames of which it is known whether C or Python called them, marked so. CPython before
  3.11 has no marks: each Python function is called by C.
- *GIL* ({gil:g}%): of the time that a thread of `gil_fight.py` waited for the GIL, what is shown as such, with the
  thread and the function that had it.
- *Stacks complete* ({whole:g}%): those that reach the start of their thread, in all of the programs, without
  disagreement of native and Python frames.
- *Order* ({order:g}%): stacks of `call_order.py` that have Python functions and the C functions between them in the
  order of their calls.
"""


def floored(percent: float) -> str:
    """Two digits, never more than it is."""
    return f"{floor(percent * 100 + 1e-9) / 100:g}%"


def _percent(tally: Tally, bar: float) -> str:
    if not tally.total:
        return "**none seen**"
    percent = 100 * tally.right / tally.total
    return floored(percent) if percent >= bar else f"**{floored(percent)}**"


def _pair(tallies: list[Tally], bar: float) -> str:
    percents = " / ".join(_percent(tally, bar) for tally in tallies)
    return f"{percents} of {' / '.join(f'{tally.total:,}' for tally in tallies)}"


def _gil(figures: Figures) -> str:
    if figures.gil is None:
        return "none"
    return f"{_percent(figures.gil, BARS['gil'])} of {figures.gil.total / 1e6:.2f} s"


def _is_read(figures: Figures) -> bool:
    return figures.said.startswith("CPython")


def cells(row: Row, figures: Figures | str) -> list[str]:
    """Of a row of the table; a text is why it was not measured."""
    if isinstance(figures, str):
        return [row.name, figures, *["-"] * (len(HEADER) - 2)]
    version = figures.true
    if figures.said.split(",")[0] != figures.true:
        told = f"{figures.true}, told as: {figures.said}"
        version = f"**{told}**" if _is_read(figures) else told
    known = [
        _pair(figures.functions, BARS["functions"]),
        _pair(figures.lines, BARS["lines"]),
        f"{_percent(figures.entries, BARS['entries'])} of {figures.entries.total:,}",
        _gil(figures),
    ]
    if not _is_read(figures):
        known = ["not read"] * len(known)
    whole, order = _pair(figures.whole, BARS["whole"]), _percent(figures.order, BARS["order"])
    build = f"{version}, {figures.build}" if figures.build else version
    return [row.name, build, row.how, *known, whole, f"{order} of {figures.order.total:,}"]


def text(measured: list[tuple[Row, Figures | str]], seconds: float, rate: int) -> str:
    """The whole document."""
    date, kernel, machine = datetime.date.today(), platform.release(), platform.machine()
    head = _HEAD.format(seconds=seconds, rate=rate, date=date, kernel=kernel, machine=machine)
    rows = [list(HEADER), ["---"] * len(HEADER), *(cells(row, figures) for row, figures in measured)]
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows) + _NOTES.format(**BARS)
