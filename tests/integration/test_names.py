"""Threads are called what their program calls them, and processes what they call themselves."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from bpfprof.recording.reader import read_recording
from tests.integration.recorded import (
    PYTHON,
    bpfprof,
    collapsed,
    completed,
    needs_root,
    program,
    recording,
    running,
    some_interpreters,
)

pytestmark = needs_root
COMM_BYTES = 15


@some_interpreters
def test_threads_have_the_names_that_their_program_gave_them(python: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(python, program("named_threads.py"), "--churn") as target:
        said = json.loads(target.first_line)
        with recording("-p", target.pid, "-o", path) as recorder:
            time.sleep(1.5)  # five of those that live for 0.3 s
            target.tell("rename")
            assert target.answer() == "renamed\n"
            assert recorder.end().returncode == 0
    with open(path, "rb") as file:
        read_back = read_recording(file)
    threads = [(thread.tid, thread.shown_name(read_back.processes[0])) for thread in read_back.threads]
    natives = {said["natives"][ident]: name for ident, name in said["names"].items()}
    shown = dict(threads)
    assert {tid for tid, name in natives.items() if shown[tid] != name} == {
        tid for tid, name in natives.items() if name == "to be renamed" or len(name) > 256
    }
    assert "was renamed" in shown.values()
    # One at the start and one at the end; those between where looking costs so little that it may be done again.
    assert [name for _, name in threads].count("short") >= 2
    folded = collapsed(path)
    assert {f"thread MainThread ({target.pid})"} <= {thread for _, thread, _, _ in folded.lines}
    assert "thread plain" in bpfprof("report", path, "-f", "collapsed", "--thread", "^plain ").stdout


@pytest.mark.gate
def test_in_a_pid_namespace(tmp_path: Path) -> None:
    """Its program knows its threads by other numbers."""
    path = tmp_path / "x.bpfprof"
    inner = [PYTHON, program("named_threads.py")]
    with running(str(shutil.which("unshare")), "--pid", "--fork", *inner):
        pid = completed(["pgrep", "-nf", "named_threads.py"], 0).stdout.strip()
        bpfprof("record", "-p", pid, "-d", 0.5, "-o", path)
    names = {thread.rpartition(" (")[0] for _, thread, _, _ in collapsed(path).lines}
    assert {"thread MainThread", "thread plain", "thread grün"} <= names


TITLE = """import ctypes, sys, threading, time
print("ready", flush=True)
sys.stdin.readline()
with open("/proc/self/comm", "w") as file:
    file.write("another title")
print("done", flush=True)
{rest}"""


@pytest.mark.gate
def test_a_process_that_renames_itself(tmp_path: Path) -> None:
    """As setproctitle does; also when it ends before the recording does."""
    for rest in ("sys.stdin.readline()", ""):
        path = tmp_path / "x.bpfprof"
        command = (PYTHON, "-c", TITLE.format(rest=rest))
        with running(*command) as target, recording("-p", target.pid, "-o", path) as recorder:
            target.tell("")
            assert target.answer() == "done\n"
            assert recorder.end(signal.SIGINT if rest else None).returncode == 0
        assert {process for process, *_ in collapsed(path).lines} == {f"process another title ({target.pid})"}
