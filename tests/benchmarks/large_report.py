"""What the views of a large recording cost: CPU and wall seconds, the most memory.

Records many_waits.py for so many seconds as the first argument says (30), or takes the recording that it names. Views
are all formats and `--by function`, or those that follow.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import PROGRAMS, python, running, show

from bpfprof.render.formats import FORMATS

BPFPROF = str(Path(sys.executable).with_name("bpfprof"))
VIEWS = {"by_function": ["--by", "function"], **{it.name: ["-f", it.name] for it in FORMATS}}


def cost(name: str, command: list[str], folder: str) -> None:
    began = time.monotonic()
    with open(Path(folder) / "made", "wb") as made:
        process = subprocess.Popen(command, stdout=made)
        _, status, used = os.wait4(process.pid, 0)
    assert status == 0, name
    show(f"large_report.{name}.cpu", used.ru_utime + used.ru_stime, "s")
    show(f"large_report.{name}.wall", time.monotonic() - began, "s")
    show(f"large_report.{name}.memory", used.ru_maxrss / 1024, "MiB")


def main() -> None:
    given = sys.argv[1] if len(sys.argv) > 1 else "30"
    with tempfile.TemporaryDirectory() as folder:
        path = given
        if not Path(given).is_file():
            path = str(Path(folder) / "large.bpfprof")
            with running(python(), str(PROGRAMS / "many_waits.py")) as target:
                subprocess.run([BPFPROF, "record", "-p", str(target.pid), "-d", given, "-o", path], check=True)
        show("large_report.file", os.path.getsize(path) / 1e6, "MB")
        for name in sys.argv[2:] or VIEWS:
            cost(name, [BPFPROF, "report", path, *VIEWS[name], "-o", "-"], folder)
        cost("diff", [BPFPROF, "diff", path, path], folder)


if __name__ == "__main__":
    main()
