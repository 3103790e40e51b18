"""What bpfprof keeps of its privileges while it records, by /proc/PID/status, and what others keep of theirs."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from bpfprof.proc.confinement import READING, RECORDING, SIGNALS, bits
from tests.integration.recorded import (
    LONGEST_RUN_S,
    PYTHON,
    bpfprof,
    let_run,
    needs_root,
    program,
    recording,
    running,
)

pytestmark = needs_root
RUN_S = 0.6  # of CPU time: 300 samples
SETS = ("CapPrm", "CapEff", "CapBnd")


def privileges(task: Path) -> dict[str, int]:
    """Sets of capabilities, whether a program may get more, and the kind of a filter; proc(5)."""
    status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
    numbers = {name: int(status[name], 16) for name in (*SETS, "CapInh", "CapAmb")}
    return {**numbers, **{name: int(status[name]) for name in ("NoNewPrivs", "Seccomp")}}


def of_all_threads(pid: int) -> list[dict[str, int]]:
    """When none has more than another: one that makes a table first comes to it later, and ends when it likes."""
    deadline_s = time.monotonic() + LONGEST_RUN_S
    while True:
        found = []
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found.append(privileges(task))
        if len({tuple(each.values()) for each in found}) == 1 or time.monotonic() > deadline_s:
            return found
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("launches", [False, True])
def test_a_recording_keeps_what_it_needs(launches: bool, tmp_path: Path) -> None:
    mine, path = privileges(Path("/proc/self")), tmp_path / "x.bpfprof"
    with running(PYTHON, program("known.py")) as target:
        what = ("--", PYTHON, program("known.py")) if launches else ("-p", target.pid)
        with recording("-o", path, "--kernel", "-r", 499, *what, stdin=subprocess.PIPE) as recorder:
            pid = recorder.process.pid
            kept = bits((*RECORDING, *(SIGNALS if launches else ()))) & mine["CapPrm"]
            expected = {**{name: kept for name in SETS}, "CapInh": 0, "CapAmb": 0, "NoNewPrivs": 1, "Seccomp": 0}
            assert all(each == expected for each in of_all_threads(pid))
            started = {Path(f"/proc/{child}/comm").read_text().strip(): child for child in children(pid)}
            reads = privileges(Path(f"/proc/{started.pop('bpfprof-reader')}"))
            read_with = bits(READING) & mine["CapPrm"]
            assert reads == {**reads, "CapPrm": read_with, "CapEff": read_with, "NoNewPrivs": 1, "Seccomp": 2}
            assert [privileges(Path(f"/proc/{child}")) for child in started.values()] == [mine] * launches
            if launches:
                assert recorder.process.stdout is not None and recorder.process.stdout.readline().startswith(b"ready")
            let_run(next(iter(started.values()), target.pid), RUN_S)
            assert recorder.end(None if launches else signal.SIGINT).returncode == 0
    functions = {row["function"] for row in json.loads(bpfprof("report", path, "-f", "json").stdout)["rows"]}
    assert {"count", "digest"} <= functions
