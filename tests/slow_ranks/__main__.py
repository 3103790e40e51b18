"""What `compare` says of ranks of torch.distributed of which one is slow: a line for each, and by how much its clocks
say that it is.

python -m tests.slow_ranks [KIND[/COUNT[/apart]]...]; apart: a recording of each rank, else one of the launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bpfprof.recording.reader import read_recording
from tests import packages
from tests.integration.recorded import PYTHON, bpfprof, program, recording, running
from tests.oracles.limits import cpu_limit

STEP = struct.Struct("4d4d4d")  # of ranks.py
RECORD_S, RATE_HZ, SLOW = 6, 499, 1  # of each rank; where many share a CPU their steps are long
PYTHON_VERSION = ".".join(map(str, sys.version_info[:2]))
# Kind -> (phases, states, functions) that may be named; none of the first: no rank is slowest.
KNOWN = {
    # In communication it is gloo's threads that wait for the CPU.
    "hog": ({"forward", "backward", "optimizer", "data wait", "communication"}, {"ready"}, None),
    "data": ({"data wait"}, {"cpu python"}, "decode"),
    "collection": ({"data wait"}, {"cpu garbage collection"}, "__getitem__"),
    "limit": ({"forward", "backward", "optimizer", "data wait", "communication", "other"}, {"ready"}, None),
    "backward": ({"backward"}, {"sleep"}, "doze"),
    "disk": ({"other"}, {"disk"}, "write_through"),
    "link": ({"communication"}, {"network"}, "train"),
    "none": (set(), set(), None),
}
DEFAULT = [f"{kind}/{count}" for count in (2, 4) for kind in KNOWN if kind != "none"]
LIMIT, DELAY_S = 0.2, 0.01  # of the part of a CPU that each other has; of each packet


def asked(
    kind: str, count: int, is_apart: bool, folder: Path
) -> tuple[dict[str, Any], str, tuple[float, float, float]]:
    """(the JSON, the screen, what later_by_clocks() says)"""
    environment = {"PYTHONPATH": packages.site_packages(PYTHON_VERSION, "torch==2.13.0", "numpy"), "TIMES": str(folder)}
    limits = ("-d", RECORD_S * count, "-r", RATE_HZ)
    paths = [folder / f"{kind}-{count}.bpfprof"]
    with ExitStack() as stack:
        if kind == "limit":
            environment["LIMITED"] = str(stack.enter_context(cpu_limit(LIMIT / (count - 1))))
        if kind == "link":
            environment["LINK"] = stack.enter_context(slow_link())
        target = stack.enter_context(running(PYTHON, program("ranks.py"), kind, str(count), str(SLOW), env=environment))
        if is_apart:
            pids = target.first_line.split()[1:]
            paths = [folder / f"{kind}-{number}.bpfprof" for number in range(count)]
            begun = [recording("-p", pid, *limits, "-o", path) for pid, path in zip(pids, paths)]
            recorders = [it.__enter__() for it in begun]
            for it, recorder in zip(begun, recorders):
                assert recorder.end(None).returncode == 0
                it.__exit__(None, None, None)
        else:
            bpfprof("record", "-p", target.pid, *limits, "-o", paths[0])
    later_s = later_by_clocks(folder, count, paths[0])
    for path in [*paths, *folder.glob("times-*")] if "KEEP" in os.environ else ():
        shutil.copy(path, os.environ["KEEP"])
    return json.loads(bpfprof("compare", *paths, "-f", "json").stdout), bpfprof("compare", *paths).stdout, later_s


def later_by_clocks(folder: Path, count: int, path: Path) -> tuple[float, float, float]:
    """(how many seconds later than most others the slow one comes to collectives; the same and how much longer than
    theirs its threads wait for a CPU within them, at least; at most): in all of a step, while it was recorded."""
    with path.open("rb") as file:
        recording = read_recording(file)
    begin_s, end_s = recording.start["start_ns"] / 1e9, recording.end["end_ns"] / 1e9
    steps = [np.array(list(STEP.iter_unpack((folder / f"times-{rank}").read_bytes()))) for rank in range(count)]
    told = np.array([each[: min(map(len, steps))] for each in steps])  # rank, step, column
    reached_s, *waited_s = told[:, :, :4], told[:, :, 4:8], told[:, :, 8:]
    recorded = (reached_s.min(axis=(0, 2)) >= begin_s) & (reached_s.max(axis=(0, 2)) <= end_s)
    more_s = [of[SLOW] - np.median(np.delete(of, SLOW, axis=0), axis=0) for of in (reached_s, *waited_s)]
    # Where others share a CPU, they come later than it to those that follow on the first.
    later_s, *within_s = (float(each[recorded].mean(axis=0).clip(0).sum()) for each in more_s)
    return later_s, later_s + min(within_s), later_s + max(within_s)


@contextlib.contextmanager
def slow_link() -> Iterator[str]:
    """What link.py prints; it takes the link away when its standard input ends."""
    command = [sys.executable, program("link.py"), str(DELAY_S)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as link:
        assert link.stdin is not None and link.stdout is not None
        try:
            yield link.stdout.readline()
        finally:
            link.stdin.close()


def is_right(kind: str, verdict: dict[str, Any] | None) -> bool:
    phases, states, function = KNOWN[kind]
    if not phases or verdict is None:
        return not phases and verdict is None
    cause = verdict["details"]
    is_it = (
        cause["phase"] in phases and cause["state"] in states and function in (None, cause["function"].split(".")[-1])
    )
    return bool(verdict["rank"] == SLOW and is_it)


def main() -> None:
    wanted = sys.argv[1:] or DEFAULT
    right = 0
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:  # on a disk, which /tmp may not be
        os.chdir(name)
        for each in wanted:
            kind, count, *apart = each.split("/") if "/" in each else (each, "2")
            found, screen, later_s = asked(kind, int(count), bool(apart), Path.cwd())
            was_right = is_right(kind, found["verdict"])
            right += was_right
            print(f"{'ok   ' if was_right else 'WRONG'} {each:12} {found['sentence']}", flush=True)
            verdict = found["verdict"] or {"late_s": 0.0, "more_s": 0.0}
            late_ms, all_ms, *known_ms = (1e3 * each for each in (verdict["late_s"], verdict["more_s"], *later_s))
            off = f" ({late_ms / known_ms[0] - 1:+.1%})" if known_ms[0] else ""
            of_late = f"{late_ms:.1f} ms late, {known_ms[0]:.1f} by their clocks{off}"
            print(f"      {of_late}; with collectives {all_ms:.1f}, {known_ms[1]:.1f} to {known_ms[2]:.1f}")
            if os.environ.get("SHOW"):
                print(screen, flush=True)
    print(f"{right} of {len(wanted)} right")


if __name__ == "__main__":
    main()
