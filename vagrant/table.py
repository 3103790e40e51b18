"""docs/kernels.md: what the rows of the matrix reported, as tables."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

_HEAD = """# Kernels

bpfprof is tried on the combinations of `vagrant/matrix.yaml`. This page is written by `make matrix`, which boots each
row under qemu and runs `pytest -m kernel` in it: `doctor`, recordings of a running program, of all processes and of a
launched one, waits alone, Python started by its loader, and a program that PyInstaller made.

"""
_COUNTS = """
## What the verifier looks at

Instructions looked at, of a million that a program may take; a test fails at 150,000. In brackets: instructions of
the program and its functions.

"""
_TIMES = """
Milliseconds that it takes for each, one after the other; bpfprof has them looked at side by side. The CPU is emulated,
a real one is quicker by far: compare rows.

"""
_COSTS = """
## What a run costs

Nanoseconds a run, the mean by the kernel's statistics, while `tests/programs/known.py` is recorded. The CPU is
emulated: compare rows, and see [accuracy.md](accuracy.md) for a real one.

"""
_PROGRAMS = ("sched_switch", "sched_waking", "on_cpu", "sched_process_exec", "sched_process_fork", "sched_process_free")


def _suite(reports: Path) -> ElementTree.Element | None:
    try:
        return ElementTree.parse(reports / "junit.xml").find("testsuite")
    except (OSError, ElementTree.ParseError):
        return None


def tests(reports: Path) -> str:
    """How many tests passed of how many."""
    suite = _suite(reports)
    if suite is None:
        return "no tests"
    total, bad = int(suite.get("tests", 0)), sum(int(suite.get(kind, 0)) for kind in ("failures", "errors", "skipped"))
    return f"{total - bad} of {total}"


def _lines(header: list[str], rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, ["---"] * len(header), *rows))


def write(path: Path, rows: list[dict], folder: Path) -> None:
    """A row without a report is in the table as one that was not run."""
    machines, counts, times, costs = [], [], [], []
    for row in rows:
        name, reports = row["name"], folder / row["name"]
        try:
            facts = json.loads((reports / "facts.json").read_text())
        except OSError:
            machines.append([name, *["not run"] * 7])
            continue
        frames = "Python and native" if row["reads"] else "native"
        seconds = (reports / "seconds").read_text()
        versions = [facts.get(key, "?") for key in ("kernel", "bcc", "llvm")]
        pythons = ", ".join([facts.get("python", "?"), *row.get("others", ())])
        machines.append([name, *versions, pythons, frames, tests(reports), seconds])
        programs, means = facts.get("programs", {}), facts.get("costs_ns", {})
        counts.append(
            [name, *(f"{programs[each][1]:,} ({programs[each][0]:,})" for each in _PROGRAMS if each in programs)]
        )
        times.append([name, *(f"{programs[each][2] / 1000:,.0f}" for each in _PROGRAMS if each in programs)])
        costs.append([name, *(f"{means[each]:,}" for each in _PROGRAMS[:3] if each in means)])
    header = ["row", "kernel", "BCC", "LLVM", "Python", "frames read", "tests passed", "seconds"]
    text = _HEAD + _lines(header, machines) + _COUNTS + _lines(["row", *_PROGRAMS], counts)
    text += _TIMES + _lines(["row", *_PROGRAMS], times)
    path.write_text(text + _COSTS + _lines(["row", *_PROGRAMS[:3]], costs))
