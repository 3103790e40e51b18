"""`bpfprof offcpu` on running programs: the table it ends with, what it leaves, its exit codes."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bpfprof.model.samples import UNSAMPLED
from bpfprof.profile.build import build_profile
from bpfprof.recording.reader import read_recording
from tests.integration.recorded import (
    AS_NOBODY,
    BPFPROF,
    PYTHON,
    Recorder,
    assert_told,
    bpfprof,
    checked,
    collapsed,
    needs_root,
    program,
    running,
    skip_unless_nobody_can_run,
)
from tests.looks import Look

pytestmark = needs_root
WINDOW_S = 1  # in 50 ms no wait may end


@pytest.mark.gate
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.second_tier)])
def test_a_signal_gives_the_table_and_a_whole_recording(number: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(PYTHON, program("training_loop.py")) as target:
        command = [*BPFPROF, "offcpu", "-p", str(target.pid), "-o", str(path)]
        process = subprocess.Popen(command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        recorder = Recorder(process)
        recorder.wait_until_it_records()
        time.sleep(WINDOW_S)
        done = recorder.end(number)
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())  # lines break anywhere
    assert "waits by reason and stack: " in shown and "bpfprof itself used" in shown, done.stdout
    assert "Traceback" not in done.stderr
    with open(path, "rb") as file:
        recording = read_recording(file)
    assert not recording.unfinished and recording.start["mode"] == "offcpu" and not len(recording.samples)
    assert {row.tid for row in recording.threads} >= {target.pid}
    assert "waits by thread: " in bpfprof("offcpu", path, "--by", "thread").stdout
    checked(path)


def test_waits_that_hold_the_gil(tmp_path: Path, look: Look) -> None:
    """A C function that is called without giving the GIL away; sleep() gives it away.

    The program tells how long the first was, which is more than it asked for where the machine is busy. Where it loses
    its CPU between the timer's start and its sleep, by a turn of others, it sleeps for less by that: some ms in 300.
    """
    until_it_is_known = "while time.thread_time() < 1: pass\nbegin = time.monotonic()"
    path = tmp_path / "x.bpfprof"

    def judge(times: int) -> None:
        asked_ms = 300 * times
        waits = f"ctypes.PyDLL(None).usleep({1000 * asked_ms}); print(1000 * (time.monotonic() - begin)); time.sleep(1)"
        code = f"import ctypes, time\n{until_it_is_known}\n{waits}"
        done = bpfprof("offcpu", "-g", "--by", "reason", "-o", path, "--", PYTHON, "-c", code)
        heading = re.search(r"waits by reason, holding the GIL: (\d+\.\d+) (m?s) in", done.stderr)
        assert heading is not None, done.stderr
        found_ms = float(heading[1]) * (1 if heading[2] == "ms" else 1000)
        told_ms = float(done.stdout) + 50  # other waits of the start of Python
        assert 0.98 * asked_ms <= found_ms < told_ms, done.stderr
        stacks = collapsed(path, "-g").lines
        assert sum(weight for *_, frames, weight in stacks if frames[-1] == "[off-cpu: sleep]") < 1000 * told_ms

    look(judge)


def test_a_command_and_a_flame_graph_of_its_waits(tmp_path: Path) -> None:
    """It may sleep before its interpreter is known: its stack is looked at while it does.

    It sleeps again some times, for the kernel side does not hear of each wake-up.
    """
    path = tmp_path / "x.svg"
    code = "import time; time.sleep(2)\nfor _ in range(10): time.sleep(0.05)"
    done = bpfprof("offcpu", "-o", path, "--waker", "--", PYTHON, "-S", "-c", code)
    assert "sleep in <module> (<string>:1)" in done.stderr
    assert "woken by timer" in path.read_text() and "waiting: sleep" in path.read_text()


def test_all_waits_are_shown_where_most_have_no_stack_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    # Until its interpreter is known waits have no function: half a second at most, where others have the CPUs.
    bpfprof("offcpu", "-d", 6, "-o", path, "--", PYTHON, program("token_ring.py"), "--seconds", 7)
    with open(path, "rb") as file:
        recording = read_recording(file)
    assert recording.short_waits["count"][recording.short_waits["flags"] & UNSAMPLED > 0].sum() > 10_000
    off_cpu_us = sum(thread.off_cpu_ns for thread in build_profile(recording).threads) / 1000
    lines = bpfprof("offcpu", path, "-f", "collapsed").stdout.splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == pytest.approx(off_cpu_us, abs=len(lines))
    head = next(line for line in bpfprof("offcpu", path, "--by", "reason").stdout.splitlines() if "waits by" in line)
    assert float(head.split(": ")[1].split(" s in ")[0]) == pytest.approx(off_cpu_us / 1e6, rel=0.01)
    ring = sum(int(line.rpartition(" ")[2]) for line in lines if ";Ring.pass_on (token_ring.py:" in line)
    assert ring > 0.9 * off_cpu_us


@pytest.mark.gate
def test_exit_codes(tmp_path: Path) -> None:
    assert_told(bpfprof("offcpu", "--pid", 2**22 + 1, check=None), 4)
    assert_told(bpfprof("offcpu", "-d", 1, check=None), 2, "--pid")
    assert_told(bpfprof("offcpu", tmp_path / "missing", check=None), 5, "missing")
    skip_unless_nobody_can_run()
    assert_told(bpfprof("offcpu", "--pid", 1, "-o", "/tmp/never.bpfprof", check=None, **AS_NOBODY), 3)
    assert not Path("/tmp/never.bpfprof").exists()
