"""Programs that do not go on, stopped by a debugger or waiting for the child of a vfork, are recorded and dumped."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.recorded import PYTHON, bpfprof, needs_root, program, recording, running

pytestmark = needs_root
WINDOW_S = 1.0
END_S = 15.0  # on a machine that others use as well
STOPS_S = 60.0
TRACES = """
import ctypes, os, sys
PTRACE_ATTACH, pid = 16, int(sys.argv[1])
assert ctypes.CDLL(None).ptrace(PTRACE_ATTACH, pid, None, None) == 0
os.waitpid(pid, 0)
print("ready", flush=True)
sys.stdin.read()
"""
# The child ends when the input does.
VFORKS = """
#include <unistd.h>
int main(void)
{
    if (vfork() == 0) {
        char byte;
        write(1, "ready\\n", 6);
        read(0, &byte, 1);
        _exit(0);
    }
    return 0;
}
"""


def wait_for_state(pid: int, state: str) -> None:
    """Of proc(5). It may come a moment later: the child of a vfork can run before its parent waits for it."""
    deadline_s = time.monotonic() + STOPS_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < deadline_s, f"it is not in state {state}"
        time.sleep(0.001)


def check(pid: int, state: str, path: Path) -> str:
    """The process, which comes to be in this state, is recorded in time; returns its dump."""
    wait_for_state(pid, state)
    begin_s = time.monotonic()
    with recording("-p", pid, "-d", WINDOW_S, "-o", path) as recorder:
        done = recorder.end(None)
    assert done.returncode == 0, done.stderr
    dumped = bpfprof("dump", pid).stdout
    assert time.monotonic() - begin_s < WINDOW_S + END_S
    report = json.loads(bpfprof("report", path, "-f", "json").stdout)
    totals, quality = report["totals"], report["quality"]
    assert quality["accounted"] > 0.99 and not quality["lost"]
    assert totals["cpu_s"] < 0.05 * totals["wall_s"] and totals["wall_s"] >= 0.9 * WINDOW_S
    return dumped


def test_a_program_that_is_traced(tmp_path: Path) -> None:
    with (
        running(PYTHON, program("known.py")) as target,
        running(PYTHON, "-c", TRACES, str(target.pid)),
    ):
        assert "MainThread" in check(target.pid, "t", tmp_path / "x.bpfprof")


@pytest.mark.skipif(shutil.which("cc") is None, reason="the program is compiled with cc")
def test_a_program_that_waits_for_the_child_of_a_vfork(tmp_path: Path) -> None:
    source, built = tmp_path / "vforks.c", tmp_path / "vforks"
    source.write_text(VFORKS)
    subprocess.run(["cc", "-w", "-o", built, source], check=True)
    with running(str(built)) as target:
        check(target.pid, "D", tmp_path / "x.bpfprof")
        assert target.process.stdin is not None
        target.process.stdin.close()  # the child ends
        target.process.wait(END_S)
