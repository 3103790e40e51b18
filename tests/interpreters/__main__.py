"""Measures every row and writes docs/interpreters.md; with words, only the rows that have them, printed.

python -m tests.interpreters [WORD...]      as root; ten minutes
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from tests.integration.recorded import ROOT
from tests.interpreters import document
from tests.interpreters.measure import RATE_HZ, WINDOW_S, Figures, measure
from tests.interpreters.rows import ROWS, Row
from tests.interpreters.ways import NotHere


def measured(row: Row) -> Figures | str:
    """What was measured, or why there is nothing: no row is left out."""
    if row.way is None:
        return f"not here: {row.how}"
    folder = Path(tempfile.mkdtemp(prefix="bpfprof-interpreters-", dir="/tmp"))
    try:
        return measure(row.way(folder), row.programs, folder)
    except NotHere as reason:
        return f"not here: {reason}"
    except (AssertionError, subprocess.SubprocessError) as error:  # the program or bpfprof did not start
        traceback.print_exc()
        return f"**not measured**: {str(error).splitlines()[0]}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    rows = [row for row in ROWS if all(word in row.name for word in sys.argv[1:])]
    found = []
    for row in rows:
        found.append((row, measured(row)))
        print(" | ".join(document.cells(*found[-1])), flush=True)
        figures = found[-1][1]
        for reason, count in figures.wrong.most_common(5) if isinstance(figures, Figures) else ():
            print(f"    {count:6} {reason[:200]}", flush=True)
    if len(rows) == len(ROWS):
        (ROOT / "docs" / "interpreters.md").write_text(document.text(found, WINDOW_S, RATE_HZ))


if __name__ == "__main__":
    main()
