"""Measures every row and writes docs/interpreters.md; with words, only the rows that have them, printed."""

from __future__ import annotations

import subprocess
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.integration.recorded import ROOT
from tests.oracles.interpreters import document
from tests.oracles.interpreters.measure import RATE_HZ, WINDOW_S, Figures, measure
from tests.oracles.interpreters.rows import ROWS, Row
from tests.oracles.interpreters.ways import NotHere
from tests.oracles.programs import chosen


def measured(row: Row, folder: Path) -> Figures | str:
    """What was measured, or why there is nothing: no row is left out."""
    if row.way is None:
        return f"not here: {row.how}"
    folder.mkdir()
    try:
        return measure(row.way(folder), row.programs, folder)
    except NotHere as reason:
        return f"not here: {reason}"
    except (AssertionError, subprocess.SubprocessError) as error:  # the program or bpfprof did not start
        traceback.print_exc()
        return f"**not measured**: {str(error).splitlines()[0]}"


def run(words: Sequence[str], folder: Path) -> None:
    names, found = chosen((row.name for row in ROWS), words), []
    for number, row in enumerate(row for row in ROWS if row.name in names):
        found.append((row, measured(row, folder / str(number))))
        print(" | ".join(document.cells(*found[-1])), flush=True)
        figures = found[-1][1]
        for reason, count in figures.wrong.most_common(5) if isinstance(figures, Figures) else ():
            print(f"    {count:6} {reason[:200]}", flush=True)
    if len(found) == len(ROWS):
        (ROOT / "docs" / "interpreters.md").write_text(document.text(found, WINDOW_S, RATE_HZ))
