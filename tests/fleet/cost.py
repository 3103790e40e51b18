"""`python -m tests.fleet.cost DIR [QUERY...]`: what queries over the data set of `tests.fleet.made` cost.

Wall and CPU seconds and the most memory of each `bpfprof fleet`, and the most that DuckDB had in files meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUERIES = {
    "top": ["top"],
    "regressions": ["regressions", "--before", "version=1.4", "--after", "version=1.5"],
    "slowest": ["slowest"],
    "slowest_by_rank": ["slowest", "--by", "rank"],
    "waits": ["waits"],
    "waits_by_minute": ["waits", "--every", "1m"],
}


def cost(name: str, query: list[str], folder: str) -> None:
    """Runs it in a process of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as spill:
        began = time.monotonic()
        command = [str(Path(sys.executable).with_name("bpfprof")), "fleet", query[0], folder, *query[1:], "-f", "json"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": spill})
        spilled = 0
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            spilled = max(spilled, sum(_size(path) for path in Path(spill).rglob("*")))
            time.sleep(0.05)
    assert status == 0, name
    print(f"fleet.{name}.wall {time.monotonic() - began:.4g} s")
    print(f"fleet.{name}.cpu {used.ru_utime + used.ru_stime:.4g} s")
    print(f"fleet.{name}.memory {used.ru_maxrss / 1024:.4g} MiB")
    print(f"fleet.{name}.spilled {spilled / 2**20:.4g} MiB", flush=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def main() -> None:
    folder, *names = sys.argv[1:]
    for name in names or QUERIES:
        cost(name, QUERIES[name], folder)


if __name__ == "__main__":
    main()
