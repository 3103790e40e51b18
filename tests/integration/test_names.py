"""Threads are called what their program calls them, and processes what they call themselves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bpfprof.recording.reader import read_recording
from tests import packages
from tests.integration.one_file import child_of
from tests.integration.recorded import (
    INTERPRETERS,
    KINDS_OF_INTERPRETERS,
    PROGRAMS,
    PYTHON,
    bpfprof,
    collapsed,
    needs_root,
    program,
    recording,
    running,
    some_interpreters,
)
from tests.looks import Look

pytestmark = needs_root
COMM_BYTES = 15
RECORD_S = 1.5  # five of the threads that live for 0.3 s


@dataclass
class Named:
    """A recording: what the program says of its threads, (tid, name) of those that were seen, its pid."""

    said: dict[str, Any]
    threads: list[tuple[int, str]]
    pid: int


def recorded(python: str, path: Path, seconds: float) -> Named:
    command = (python, program("named_threads.py"), "--churn")
    with running(*command) as target, recording("-p", target.pid, "-o", path) as recorder:
        time.sleep(seconds)  # the length of the recording
        target.tell("rename")
        assert target.answer() == "renamed\n"
        assert recorder.end().returncode == 0
    with open(path, "rb") as file:
        read_back = read_recording(file)
    threads = [(thread.tid, thread.shown_name(read_back.processes[0])) for thread in read_back.threads]
    return Named(json.loads(target.first_line), threads, target.pid)


@some_interpreters
def test_threads_have_the_names_that_their_program_gave_them(python: str, tmp_path: Path, look: Look) -> None:
    path = tmp_path / "x.bpfprof"

    def judge(times: int) -> None:
        """Of those that come and go one at the start and one at the end.

        That at the end may just be being born then; those between are named where looking costs so little that it may
        be done again.
        """
        found.append(recorded(python, path, times * RECORD_S))
        assert [name for _, name in found[-1].threads].count("short") >= 2

    found: list[Named] = []
    look(judge)
    named = found[-1]
    natives = {named.said["natives"][ident]: name for ident, name in named.said["names"].items()}
    shown = dict(named.threads)
    assert {tid for tid, name in natives.items() if shown[tid] != name} == {
        tid for tid, name in natives.items() if name == "to be renamed" or len(name) > 256
    }
    assert "was renamed" in shown.values()
    folded = collapsed(path)
    assert {f"thread MainThread ({named.pid})"} <= {thread for _, thread, _, _ in folded.lines}
    assert "thread plain" in bpfprof("report", path, "-f", "collapsed", "--thread", "^plain ").stdout


@pytest.mark.gate
def test_a_thread_that_says_late_who_it_is_has_its_name(tmp_path: Path) -> None:
    """It is looked at when it was born, and then waits for the GIL; when the recording ends it has ended."""
    path = tmp_path / "x.bpfprof"
    with running(PYTHON, program("late_name.py")) as target, recording("-p", target.pid, "-o", path) as recorder:
        target.tell("begin")
        tid = int(target.answer())
        assert recorder.end().returncode == 0
    assert f"thread late ({tid})" in {thread for _, thread, _, _ in collapsed(path).lines}


@pytest.mark.parametrize("python", [*KINDS_OF_INTERPRETERS.values()], ids=[*KINDS_OF_INTERPRETERS])
def test_workers_have_the_names_that_their_program_gives_them(python: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(python, program("workers.py"), "fork") as target:
        names = json.loads(target.first_line)
        bpfprof("record", "-p", target.pid, "-d", 1, "-o", path)
    found = process_rows(path)
    assert {pid: found.get(pid) or "" for pid in names} == names and len(names) == 6
    assert found[str(target.pid)] is None
    text = bpfprof("report", path, "--by", "process").stdout
    assert all(f" ({pid}), {given}\n" in text for pid, given in names.items() if given)


def test_spawned_workers_have_names_too(tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(PYTHON, program("workers.py"), "spawn") as target:
        names = json.loads(target.first_line)
        bpfprof("record", "-p", target.pid, "-d", 1, "-o", path)
    found = process_rows(path)
    assert {pid: found.get(pid) or "" for pid in names} == names


def test_workers_of_celery_have_its_names(tmp_path: Path) -> None:
    path, python = tmp_path / "x.bpfprof", INTERPRETERS["3.12"]
    environment = {**os.environ, "PYTHONPATH": f"{packages.folder('3.12', 'celery==5.4.0')}:{PROGRAMS}"}
    command = [python, "-m", "celery", "-A", "celery_tasks", "worker", "-P", "prefork", "-c", "2", "-l", "INFO"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stderr is not None
            assert any(line.rstrip().endswith(" ready.") for line in worker.stderr)
            bpfprof("record", "-p", worker.pid, "-d", 1, "-o", path)
        finally:
            worker.terminate()
    rows = json.loads(bpfprof("report", path, "--by", "process", "--idle", "-f", "json").stdout)["rows"]
    assert {row.get("worker", "") for row in rows} == {"", "ForkPoolWorker-1", "ForkPoolWorker-2"}


def process_rows(path: Path) -> dict[str, str | None]:
    """By pid what each that ran is called."""
    rows = json.loads(bpfprof("report", path, "--by", "process", "-f", "json").stdout)["rows"]
    return {row["process"].rpartition("(")[2].rstrip(")"): row.get("worker") for row in rows}


@pytest.mark.gate
def test_in_a_pid_namespace(tmp_path: Path) -> None:
    """Its program knows its threads by other numbers."""
    path = tmp_path / "x.bpfprof"
    inner = [PYTHON, program("named_threads.py")]
    with running(str(shutil.which("unshare")), "--pid", "--fork", *inner) as target:
        bpfprof("record", "-p", child_of(target.pid), "-d", 0.5, "-o", path)
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
