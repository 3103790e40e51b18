"""`python -m tests.all`: everything that can be tested here, part after part, and a table of what became of each.

A part that fails does not keep the others from being run; the exit status is 1 then.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.looks import SECOND_LOOK

ROOT = Path(__file__).resolve().parents[1]
# Tests that record nothing, or ask nothing that others on the CPUs could change: they run beside one another.
_BESIDE = ("unit", "ebpf_host", "golden", "fleet", "fuzz", "oracles", "command", "packaging")
# One after another: what they measure others would change.
_ALONE = ("browser", "kernel", "hostile", "integration")
_ROW = re.compile(r"^(\S+) +(passed|FAILED|not done|no report)\D*(?:(\d+) of (\d+))?.* (\d+) s$", re.MULTILINE)


@dataclass
class Part:
    """What became of one: `second_looks` are tests that were asked again with more data."""

    name: str
    tests: int
    failed: int
    second_looks: int
    seconds: float


def _pytest(name: str, *arguments: str) -> Part:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--quiet", f"--junitxml={report}"]
        began_s = time.monotonic()
        status = subprocess.run([*command, *arguments], cwd=ROOT, check=False).returncode
        seconds = time.monotonic() - began_s
        if not report.exists():
            return Part(name, 0, 1, 0, seconds)
        (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    count = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors")}
    looks = sum(1 for each in suite.iter("property") if each.get("name") == SECOND_LOOK)
    failed = count["failures"] + count["errors"]
    return Part(name, count["tests"], failed or int(status not in (0, 5)), looks, seconds)


def _lint() -> Part:
    began_s = time.monotonic()
    status = subprocess.run(["make", "lint"], cwd=ROOT, check=False).returncode
    return Part("lint", 1, int(status != 0), 0, time.monotonic() - began_s)


def _kernels() -> list[Part]:
    began_s = time.monotonic()
    done = subprocess.run(["make", "matrix-ci"], cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    rows = [
        Part(name, int(of or 1), int(of or 1) - int(passed or 0), 0, float(seconds))
        for name, _, passed, of, seconds in _ROW.findall(done.stdout)
    ]
    if done.returncode and not any(row.failed for row in rows):
        rows.append(Part("kernels", 1, 1, 0, time.monotonic() - began_s))
    return rows


def _table(parts: list[Part]) -> str:
    total = Part(
        "all", *(sum(getattr(part, name) for part in parts) for name in ("tests", "failed", "second_looks", "seconds"))
    )
    lines = [f"{'part':<20}{'tests':>8}{'failed':>8}{'second looks':>14}{'seconds':>9}"]
    lines += [
        f"{part.name:<20}{part.tests:>8}{part.failed:>8}{part.second_looks:>14}{part.seconds:>9.0f}"
        for part in (*parts, total)
    ]
    return "\n".join(lines)


def main() -> int:
    parts = [_lint()]
    workers = str((os.cpu_count() or 1) + 1)
    parts.append(_pytest("side by side", "-n", workers, "--dist", "loadfile", *(f"tests/{name}" for name in _BESIDE)))
    parts += [_pytest(name, f"tests/{name}") for name in _ALONE]
    parts += _kernels()
    print(_table(parts), flush=True)
    return int(any(part.failed for part in parts))


if __name__ == "__main__":
    sys.exit(main())
