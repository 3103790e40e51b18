"""The Makefile says in which of two runs each file of tests is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def files_of(paths: list[str]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        found += [ROOT / path] if path.endswith(".py") else (ROOT / path).rglob("test_*.py")
    return sorted(found)


def test_every_file_of_tests_is_run_once() -> None:
    would_do = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    runs = [line for line in would_do.splitlines() if " -m pytest " in line]
    (paths,) = re.findall(r"^testpaths = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    run = files_of(re.findall(r"(?<= )tests/\S+", " ".join(runs)))
    assert len(runs) == 2 and run == files_of(re.findall(r'"(.*?)"', paths)) and len(run) > 200
