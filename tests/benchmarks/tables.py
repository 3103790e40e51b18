"""Writes figures into the tables of a document: what the benchmarks print comes in on standard input.

A row of a table whose last cell is the name of a figure in backquotes gets that figure into its second cell; the line
that begins with `Measured on` tells of this machine and day. Figures that did not come in stay as they are.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import sys
from pathlib import Path

ROW = re.compile(r"^\| (?P<what>.*?) \| (?P<value>.*?) \| `(?P<name>[\w.]+)` \|$")


def figures(text: str) -> dict[str, str]:
    """Name -> value with its unit, of the lines `name value unit`."""
    lines = (line.split() for line in text.splitlines())
    return {words[0]: f"{float(f'{float(words[1]):.3g}'):,g} {words[2]}" for words in lines if len(words) == 3}


def machine() -> str:
    """The CPU, how many of them, and the kernel."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cpu = " ".join(model[1].split()) if model else platform.machine()
    return f"{os.cpu_count()} CPUs ({cpu}), Linux {platform.release()}"


def main() -> None:
    document, found = Path(sys.argv[1]), figures(sys.stdin.read())
    lines = []
    for line in document.read_text().splitlines():
        row = ROW.match(line)
        if row and row["name"] in found:
            line = f"| {row['what']} | {found[row['name']]} | `{row['name']}` |"
        elif line.startswith("Measured on"):
            line = f"Measured on {datetime.date.today()} with `make bench`: {machine()}."
        lines.append(line)
    document.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
