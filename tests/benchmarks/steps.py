"""`report --by step` beside the own clocks of training loops of six styles (training_styles.py), as root, at 99 Hz.

For each: how many steps there were, how many more or less were told, by how much the mean is off, and the phase that is
off most.
Then what a mark costs a program while nobody records, and while somebody does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import PROGRAMS, ROOT, show

from bpfprof.recording.reader import read_recording
from tests import packages, torch_root

BPFPROF = str(Path(sys.executable).with_name("bpfprof"))
STYLES = ("plain", "trainer", "lightning", "generator", "native", "compiled")
JAX = ("jax==0.10.2", "optax==0.2.8")
SECONDS = 20
COST = """
import time
from bpfprof.marks import mark

def empty(count):
    for _ in range(count):
        pass

def marked(count):
    for _ in range(count):
        with mark("step"):
            pass

def least_ns(function):
    found = []
    for _ in range(60):
        begin = time.thread_time_ns()
        function(20_000)
        found.append((time.thread_time_ns() - begin) / 20_000)
    return min(found)

print(least_ns(marked) - least_ns(empty))
mark.__defaults__[1].words[1] = 1 << 62
print(least_ns(marked) - least_ns(empty))
"""


def compare(style: str, folder: Path) -> None:
    told, path = folder / f"{style}.json", folder / f"{style}.bpfprof"
    python = sys.executable if style in ("native", "compiled") else torch_root.python()
    environment = dict(os.environ)
    if style == "compiled":
        environment["PYTHONPATH"] = packages.folder("{}.{}".format(*sys.version_info), *JAX)
    command = [python, str(PROGRAMS / "training_styles.py"), style, "--told", str(told)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=environment) as target:
        assert target.stdin is not None and target.stdout is not None
        target.stdout.readline()
        record = [BPFPROF, "record", "-p", str(target.pid), "-d", str(SECONDS), "-o", str(path)]
        subprocess.run(record, check=True, capture_output=True)
        target.stdin.close()
        target.stdout.readline()
    with path.open("rb") as file:
        recording = read_recording(file)
    begin_ns, end_ns = recording.start["start_ns"], recording.end["end_ns"]
    rows = json.loads(told.read_text())
    own = [
        (begin, end, spent) for (begin, spent), (end, _) in zip(rows, rows[1:]) if begin_ns <= begin and end <= end_ns
    ]
    shares = {name: sum(spent.get(name, 0) for _, _, spent in own) for _, _, spent in own for name in spent}
    whole = sum(end - begin for begin, end, _ in own)
    command = [BPFPROF, "report", str(path), "--by", "step", "-f", "json"]
    (found,) = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["loops"]
    show(f"steps_{style}", len(own), "steps")
    show(f"steps_{style}_miscounted", abs(found["count"] - len(own)), "steps")
    show(f"steps_{style}_mean_off", 100 * abs(found["mean_s"] * 1e9 / (whole / len(own)) - 1), "%")
    phases = {name: each["share"] for name, each in found["phases"].items()}
    off = [abs(phases.get(name, 0) - shares.get(name, 0) / whole) for name in {*phases, *shares}]
    show(f"steps_{style}_phase_off_most", 100 * max(off), "points")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for style in sys.argv[1:] or STYLES:
            compare(style, Path(folder))
    told = subprocess.run([sys.executable, "-c", COST], check=True, capture_output=True, text=True, cwd=ROOT)
    for name, cost_ns in zip(("nobody_records", "it_is_recorded"), told.stdout.split()):
        show(f"mark_cost_while_{name}", float(cost_ns), "ns")


if __name__ == "__main__":
    main()
