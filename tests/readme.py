"""python -m tests.readme: makes the texts of README.md's first page anew, as root, from programs of tests/programs.

Needs PyPI for Flask, waitress and py-spy, which it puts into a folder of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.integration.recorded import BPFPROF, ROOT, program, running

_README = ROOT / "README.md"
_COLUMNS, _ROWS = 80, 24


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder) / "packages"
        get = [sys.executable, "-m", "pip", "install", "-q", "--target", packages, "flask", "waitress", "py-spy"]
        subprocess.run(get, check=True)
        texts = {"service": service(packages, Path(folder)), "deadlock": deadlock()}
    text = _README.read_text(encoding="utf-8")
    for name, block in texts.items():
        begin, end = f"<!-- {name}, by tests/readme.py -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{block}{end}{rest.partition(end)[2]}"
    _README.write_text(text, encoding="utf-8")


def service(packages: Path, folder: Path) -> str:
    """What py-spy says of the threads of a slow service, and what bpfprof does."""
    env = {**os.environ, "PYTHONPATH": str(packages)}
    with running(sys.executable, program("shop.py"), env=env) as shop:
        spy = said(packages / "bin" / "py-spy", "dump", "--pid", str(shop.pid))
        recording = folder / "shop.bpfprof"
        summary = said(*BPFPROF, "record", "--pid", str(shop.pid), "-d", "5", "--no-subprocesses", "-o", str(recording))
    idle = [line for line in spy.splitlines() if re.match(r'Thread \d+ \([\w+]+\): "waitress', line)]
    stack = next(part for part in re.split(r"\n(?=Thread )", spy) if "audit" in part).splitlines()[:4]
    shown = [*stack, f"    ... and {len(idle) - 1} more threads of waitress, {_states(idle)}"]
    summary = summary.partition("\nrecording: ")[0].partition("\nbpfprof: ")[0]
    return (
        "```\n$ sudo py-spy dump --pid PID\n"
        + "\n".join(shown)
        + f"\n\n$ sudo bpfprof record --pid PID -d 5\n{summary}\n```\n"
    )


def _states(lines: list[str]) -> str:
    found = [match[1] for line in lines if (match := re.search(r"\(([\w+]+)\)", line))]
    return ", ".join(f"{found.count(state)} {state}" for state in dict.fromkeys(found))


def deadlock() -> str:
    """Of a process that hangs."""
    with running(sys.executable, program("lock_orders.py"), "deadlock") as hung:
        text = said(*BPFPROF, "dump", str(hung.pid))
    return f"```\n$ sudo bpfprof dump PID\n{text.rstrip()}\n```\n"


def said(*command: str | Path) -> str:
    """On a terminal of 80 columns."""
    env = {**os.environ, "COLUMNS": str(_COLUMNS), "LINES": str(_ROWS)}
    return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
