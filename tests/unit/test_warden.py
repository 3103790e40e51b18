"""What a run of the tests leaves behind is ended, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 60.0
# One in a session of its own, and one behind it whose environment is another.
RUN = """
import subprocess, sys, time
from tests import warden
warden.start()
shell = "env -i sleep 1000 & echo $$ $!; wait"
started = subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE, start_new_session=True)
print(started.stdout.readline().decode(), end="", flush=True)
sys.stdin.read()
"""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGKILL])
def test_a_run_leaves_no_process(number: int | None) -> None:
    pipe = subprocess.PIPE
    bystander = subprocess.Popen(["sleep", "1000"])
    with subprocess.Popen([sys.executable, "-c", RUN], stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as run:
        assert run.stdout is not None and run.stdin is not None
        pids = [int(word) for word in run.stdout.readline().split()]
        assert len(pids) == 2 and all(lives(pid) for pid in pids)
        if number is not None:
            os.kill(run.pid, number)
    until_s = time.monotonic() + LONGEST_S
    while any(lives(pid) for pid in pids):
        assert time.monotonic() < until_s, "they live on"
        time.sleep(0.01)
    try:
        assert lives(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()
