"""How often `bpfprof diff --by step` is right about a training loop (training_styles.py, torch). Run as root.

The loop is recorded twice as many times as the first argument says (20), as it is: of that many pairs of runs each
should show no difference. Then, as often as the second argument says (3), with a data set that does too much, beside a
run as it is: how far what is said is from the loops' own clocks, and which phase it says that the difference is of.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from figures import PROGRAMS, show

from tests import torch_root

BPFPROF = str(Path(sys.executable).with_name("bpfprof"))
SECONDS, SLOW_ROUNDS = 6, "100000"


def record(path: Path, *more: str) -> float:
    """Seconds of a step by the loop's own clock."""
    told = path.with_suffix(".json")
    command = [torch_root.python(), str(PROGRAMS / "training_styles.py"), "plain", "--told", str(told), *more]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as target:
        assert target.stdin is not None and target.stdout is not None
        target.stdout.readline()
        wanted = ["record", "-p", str(target.pid), "-d", str(SECONDS), "-o", str(path)]
        subprocess.run([BPFPROF, *wanted], check=True, capture_output=True)
        target.stdin.close()
        target.stdout.readline()
    begins = [begin for begin, _ in json.loads(told.read_text())]
    return float(begins[-1] - begins[3]) / (len(begins) - 4) / 1e9


def compared(before: Path, after: Path) -> Any:
    command = [BPFPROF, "diff", str(before), str(after), "--by", "step", "-f", "json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def main() -> None:
    pairs, mended = (int(each) for each in (*sys.argv[1:], *(20, 3)[len(sys.argv) - 1 :]))
    alike = 0
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.bpfprof", Path(folder) / "after.bpfprof"
        for _ in range(pairs):
            clocks = record(before), record(after)
            found = compared(before, after)
            is_alike = found["verdict"]["sentence"].startswith("no difference")
            alike += is_alike
            print(f"# {1e3 * clocks[0]:.2f} {1e3 * clocks[1]:.2f} ms a step:", found["verdict"]["sentence"], flush=True)
        show("step_pairs_alike", alike, f"of {pairs}")
        for number in range(mended):
            clocks = record(before, "--rounds", SLOW_ROUNDS), record(after)
            found = compared(before, after)
            step = found["rows"][0]
            told = step["before_s"] / step["after_s"]
            show(f"step_pairs_faster_{number}", told, "times the steps a second")
            show(f"step_pairs_faster_{number}_off", 100 * abs(told / (clocks[0] / clocks[1]) - 1), "%")
            print("#", found["verdict"]["sentence"], flush=True)


if __name__ == "__main__":
    main()
