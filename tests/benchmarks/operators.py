"""`report --by operator` beside torch.profiler, of a transformer and a convnet (torch_operators.py), as root.

They load their samples themselves, or by two workers. For each: the largest difference of shares of time among the
profiler's first ten operators, and how many of them have the same place. What the profiler calls CPU time goes on while
a thread waits, so it is compared with CPU time and waits, and is right where CPUs are free. Its own cost is in it, most
in operators that are short and many. An optimizer counts by the class whose step() runs: AdamW has Adam's since 2.7.
The argument is a Python that has PyTorch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from figures import PROGRAMS, running, show

from tests import torch_root

BPFPROF = str(Path(sys.executable).with_name("bpfprof"))
SECONDS, RATE_HZ, FIRST = 20, 499, 10


def shares(times: dict[str, float], known: set[str]) -> dict[str, float]:
    """In percent of those that both know: the profiler has scopes besides, and a recording has other threads."""
    whole = sum(time for name, time in times.items() if name in known)
    return {name: 100 * time / whole for name, time in times.items() if name in known}


def compare(kind: str, workers: int, folder: Path, python: str) -> None:
    told, recording = folder / "told.json", str(folder / "operators.bpfprof")
    program = [str(PROGRAMS / "torch_operators.py"), kind, "--profile", str(told), "--workers", str(workers)]
    program += ["--steps", "100", "--warm-up", "300"]
    with running(python, *program) as target:
        command = [BPFPROF, "record", "-p", str(target.pid), "-d", str(SECONDS), "-r", str(RATE_HZ), "-o", recording]
        subprocess.run(command, check=True, capture_output=True)
    command = [BPFPROF, "report", recording, "--by", "operator", "-f", "json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["rows"]
    measured = {row["operator"]: row["cpu_self_s"] + row["wait_self_s"] for row in rows}
    profiled = {name.replace("AdamW", "Adam"): time for name, time in json.loads(told.read_text()).items()}
    found, expected = (shares(times, measured.keys() & profiled.keys()) for times in (measured, profiled))
    first = sorted(expected, key=lambda name: -expected[name])[:FIRST]
    ours = sorted(found, key=lambda name: -found[name])[:FIRST]
    for name in first:
        print(f"  {name:40} profiler {expected[name]:6.2f}%  bpfprof {found.get(name, 0.0):6.2f}%")
    figure = f"operators_{kind}_{workers}_workers"
    difference = max(abs(expected[name] - found.get(name, 0.0)) for name in first)
    show(f"{figure}_largest_difference", difference, "points")
    show(f"{figure}_at_the_same_place", sum(one == other for one, other in zip(first, ours)), "")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind, workers in product(("transformer", "convnet"), (0, 2)):
            compare(kind, workers, Path(folder), sys.argv[1] if len(sys.argv) > 1 else torch_root.python())


if __name__ == "__main__":
    main()
