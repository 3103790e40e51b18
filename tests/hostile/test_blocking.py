"""A program whose memory nobody answers for any more, beside an honest one: bpfprof ends when it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.recorded import BPFPROF, PYTHON, bpfprof, needs_root, open_folder, program, recording, running

pytestmark = [needs_root, pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="this kernel has no FUSE")]
WINDOW_S = 1.2  # some four reads that are not answered
LONGER_S = 5.0  # in which one is not, however busy the machine is
END_S = 1.0
# What making the summary takes on a machine that others use as well, beside the second.
BUSY_S = 10.0


@pytest.fixture
def pid() -> Iterator[int]:
    """Of the program, while its server says nothing."""
    with open_folder() as folder, running(PYTHON, program("unanswered.py"), str(folder)) as target:
        yield int(target.first_line)
        target.end()


def is_left(pid: int) -> bool:
    """Whether a process still has something that runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_recording_and_others_keep_theirs(pid: int, number: int, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(PYTHON, program("known.py")) as bystander:
        with recording("-p", bystander.pid, "-p", pid, "-o", path) as recorder:
            time.sleep(LONGER_S)
            begin_s = time.monotonic()
            done = recorder.end(number)
            seconds = time.monotonic() - begin_s
        only = ("--process", rf"\({bystander.pid}\)", "-f", "json")
        report = json.loads(bpfprof("report", path, *only).stdout)
    assert done.returncode == 0, done.stderr
    said = " ".join(bpfprof("report", path, "-f", "table").stdout.split())  # without its line ends
    assert "processes whose memory did not answer, and was not read any more 1" in said
    cpu = {row["function"]: row["cpu_self_s"] for row in report["rows"]}
    assert cpu["count"] + cpu["digest"] > 0.7 * report["totals"]["cpu_s"]
    assert seconds < END_S + BUSY_S


def test_sigkill_ends_it_at_once(pid: int, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with recording("-a", "-o", path) as recorder:
        time.sleep(WINDOW_S)
        recorder.process.kill()
        recorder.process.wait(END_S + BUSY_S)
        assert not is_left(recorder.process.pid)
    assert json.loads(bpfprof("report", path, "-f", "json", check=None).stdout)["quality"]["unfinished"]


def test_dump_and_top_end(pid: int) -> None:
    for _ in range(3):
        bpfprof("dump", pid, timeout=END_S + BUSY_S)
    with subprocess.Popen(
        [*BPFPROF, "top", "-p", str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as top:
        try:
            time.sleep(WINDOW_S)
            os.kill(top.pid, signal.SIGINT)
            top.wait(END_S + BUSY_S)
        finally:
            top.kill()
