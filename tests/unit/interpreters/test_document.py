"""docs/interpreters.md: it has every row of the list, and figures are never better than what was measured."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.integration.recorded import ROOT
from tests.oracles.interpreters import document
from tests.oracles.interpreters.judges import Tally
from tests.oracles.interpreters.measure import COMMANDS, Figures
from tests.oracles.interpreters.rows import ROWS, Row

LINES = (ROOT / "docs" / "interpreters.md").read_text().splitlines()
WRITTEN = [line.strip("| ").split(" | ") for line in LINES if line.startswith("| ")]
# What the project promises to read, or to name.
NAMED = [
    *(f"CPython 3.{minor}" for minor in range(6, 16)),
    *("3.13t", "3.14t", "3.15t", "tail-call", "3.14, JIT on", "3.15, JIT on", "debug", "stripped", "static", "PIE"),
    *("one file", "embedded", "loaded late", "ld.so", "sub-interpreter", "musl", "PyPy"),
]


def test_every_row_is_in_the_document() -> None:
    header, _, *rows = WRITTEN
    assert header == list(document.HEADER)
    assert Counter(cells[0] for cells in rows) == Counter(row.name for row in ROWS)
    assert all(len(cells) == len(header) and all(cells) for cells in rows)


@pytest.mark.parametrize("name", NAMED)
def test_what_was_promised_has_a_row(name: str) -> None:
    assert any(name in row.name for row in ROWS)


def test_rows_are_run_with_programs_that_there_are() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(set(row.programs) <= set(COMMANDS) for row in ROWS)


@pytest.mark.parametrize(
    ("percent", "text"), [(100, "100%"), (99.999, "99.99%"), (99.5, "99.5%"), (100 * 0.07, "7%"), (0, "0%")]
)
def test_percentages_are_rounded_down(percent: float, text: str) -> None:
    assert document.floored(percent) == text


def figures() -> Figures:
    made = Figures("CPython 3.12.1", "CPython 3.12.1", "shared library")
    for tally in (*made.functions, *made.lines, *made.whole, made.entries, made.order, made.gil):
        assert tally is not None
        tally.add(1000, 1000)
    return made


def test_what_misses_its_bar_is_bold() -> None:
    measured = figures()
    row = Row("CPython 3.12", "pyenv", None)
    assert "**" not in " ".join(document.cells(row, measured))
    measured.lines[1].add(0, 1)
    measured.order = Tally()
    cells = dict(zip(document.HEADER, document.cells(row, measured)))
    assert cells["lines right"] == "100% / **99.9%** of 1,000 / 1,001"
    assert cells["order right"] == "**none seen** of 0"


def test_a_version_that_is_told_wrong_is_shown() -> None:
    measured = figures()
    measured.said = "CPython 3.11.2"
    assert document.cells(Row("x", "y", None), measured)[1].startswith("**CPython 3.12.1, told as: CPython 3.11.2**")


def test_an_interpreter_that_is_not_read_has_native_figures_only() -> None:
    measured = figures()
    measured.said, measured.true = "PyPy 3.9", "PyPy 3.9.16"
    cells = dict(zip(document.HEADER, document.cells(Row("PyPy", "y", None), measured)))
    assert cells["functions right"] == cells["GIL"] == "not read"
    assert cells["stacks complete"] == "100% / 100% of 1,000 / 1,000"


def test_an_interpreter_without_a_gil() -> None:
    measured = figures()
    measured.gil = None
    assert "none" in document.cells(Row("x", "y", None), measured)
