"""`report --by operator` beside torch.profiler, of a transformer and a convnet (torch_operators.py), as root.

They load their samples themselves, or by two workers. For each: the largest difference of shares of time among the
profiler's first ten operators, and how many of them have the same place: here, and in two of the profiler's own turns,
which differ where operators are as long as others. And how many pairs, of those ten, all its turns have in one order
and bpfprof in the other. What the profiler calls CPU time goes on while
a thread waits, so it is compared with CPU time and waits, and is right where CPUs are free. Its own cost is in it, most
in operators that are short and many. An optimizer counts by the class whose step() runs: AdamW has Adam's since 2.7.
The argument is a Python that has PyTorch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path

from figures import PROGRAMS, running, show

from tests import torch_root

BPFPROF = str(Path(sys.executable).with_name("bpfprof"))
SECONDS, RATE_HZ, FIRST, TURNS = 20, 499, 10, 3


def shares(times: dict[str, float], known: set[str]) -> dict[str, float]:
    """In percent of those that both know: the profiler has scopes besides, and a recording has other threads."""
    whole = sum(time for name, time in times.items() if name in known)
    return {name: 100 * time / whole for name, time in times.items() if name in known}


def ordered(found: dict[str, float]) -> list[str]:
    """The largest first."""
    return sorted(found, key=lambda name: -found[name])[:FIRST]


def same_places(one: dict[str, float], other: dict[str, float]) -> int:
    return sum(first == second for first, second in zip(ordered(one), ordered(other)))


def out_of_order(found: dict[str, float], turns: Sequence[dict[str, float]]) -> int:
    """Pairs of the first that every turn of the profiler has in one order, and `found` in the other."""
    first = ordered(turns[0])
    pairs = [(one, other) for one, other in product(first, first) if all(turn[one] > turn[other] for turn in turns)]
    return sum(found.get(one, 0.0) < found.get(other, 0.0) for one, other in pairs)


def compare(kind: str, workers: int, folder: Path, python: str) -> None:
    told, recording = folder / "told.json", str(folder / "operators.bpfprof")
    program = [str(PROGRAMS / "torch_operators.py"), kind, "--profile", str(told), "--workers", str(workers)]
    program += ["--steps", "100", "--turns", str(TURNS), "--warm-up", "300"]
    with running(python, *program) as target:
        command = [BPFPROF, "record", "-p", str(target.pid), "-d", str(SECONDS), "-r", str(RATE_HZ), "-o", recording]
        subprocess.run(command, check=True, capture_output=True)
    command = [BPFPROF, "report", recording, "--by", "operator", "-f", "json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["rows"]
    measured = {row["operator"]: row["cpu_self_s"] + row["wait_self_s"] for row in rows}
    turns = [{name.replace("AdamW", "Adam"): time for name, time in it.items()} for it in json.loads(told.read_text())]
    known = measured.keys() & set.intersection(*({*turn} for turn in turns))
    found, of_turns = shares(measured, known), [shares(turn, known) for turn in turns]
    expected = {name: sum(turn[name] for turn in of_turns) / TURNS for name in known}
    for name in ordered(expected):
        of_each = ", ".join(f"{turn[name]:.2f}" for turn in of_turns)
        print(f"  {name:40} profiler {expected[name]:6.2f}% ({of_each})  bpfprof {found.get(name, 0.0):6.2f}%")
    figure = f"operators_{kind}_{workers}_workers"
    difference = max(abs(expected[name] - found.get(name, 0.0)) for name in ordered(expected))
    show(f"{figure}_largest_difference", difference, "points")
    show(f"{figure}_at_the_same_place", same_places(expected, found), "")
    own = [same_places(one, other) for one, other in combinations(of_turns, 2)]
    show(f"{figure}_at_the_same_place_in_two_turns_of_the_profiler", sum(own) / len(own), "")
    show(f"{figure}_pairs_in_another_order_than_in_all_its_turns", out_of_order(found, of_turns), "")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind, workers in product(("transformer", "convnet"), (0, 2)):
            compare(kind, workers, Path(folder), sys.argv[1] if len(sys.argv) > 1 else torch_root.python())


if __name__ == "__main__":
    main()
