"""Programs that would stop or fill up who profiles them, each beside an honest one, which keeps its profile."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bpfprof.commands.report import load_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.query.threads.losses import losses_of
from tests.hostile.bystander import LEAST_CPU_S, POINTS, RATE_HZ, answer, apart, bystander
from tests.integration.recorded import PYTHON, bpfprof, cpu_s, needs_root, program, recording, running

pytestmark = needs_root
WINDOW_S, LONGER_S = 4, 20
STOPPED_S = 3
# From the signal to the end of bpfprof: 3 s, and what a machine takes besides on which others want the CPUs, too.
END_S = 5.0
REPORT_S = 15.0
MEMORY_MB = 500
FILE_MB = 100
OPEN_FILES = 128


def peak_kb(pid: int) -> int:
    """What the process itself had in memory at most, which getrusage() does not tell from those it was forked from."""
    with open(f"/proc/{pid}/status") as file:
        found = re.search(r"^VmHWM:\s+(\d+) kB", file.read(), re.MULTILINE)
    return int(found[1]) if found else 0


def check(folder: Path, *attack: str, with_all: bool = False, **options: Any) -> None:
    """Records a bystander and an attack, or all processes; prints what it took. options: of subprocess, for bpfprof."""
    path = folder / "x.bpfprof"
    with ExitStack() as stack:
        beside = stack.enter_context(bystander())
        attacker = stack.enter_context(running(*attack))
        targets = ["-a"] if with_all else ["-p", beside.pid, "-p", attacker.pid]
        recorder = stack.enter_context(recording(*targets, "-r", RATE_HZ, "-o", path, **options))
        beside.tell("start")
        end_s, memory_kb, enough_s = time.monotonic() + WINDOW_S, 0, cpu_s(beside.pid) + LEAST_CPU_S
        while time.monotonic() < end_s or (cpu_s(beside.pid) < enough_s and time.monotonic() < end_s + LONGER_S):
            memory_kb = max(memory_kb, peak_kb(recorder.process.pid))
            time.sleep(0.02)  # of the last moments the peak is not known
        truth = answer(beside)
        begin_s = time.monotonic()
        done = recorder.end()
        seconds = time.monotonic() - begin_s
        # Of the attack much may be lost, which is said.
        assert done.returncode == 0 or (done.returncode == 5 and "incomplete" in done.stderr), done.stderr
    begin_s = time.monotonic()
    bpfprof("report", path, "--process", rf"\({beside.pid}\)", "-f", "json")
    report_s = time.monotonic() - begin_s
    memory_mb, file_mb = memory_kb / 1024, path.stat().st_size / 2**20
    points = apart(path, truth)
    worst = {kind: max(its for name, its in points.items() if name.startswith(kind)) for kind in ("cpu_ns", "wait_ns")}
    print(f"ended in {seconds:.1f} s, {memory_mb:.0f} MB, file {file_mb:.1f} MB, report {report_s:.1f} s", end=", ")
    print(f"bystander {worst['cpu_ns']:.2f} points apart on the CPU, {worst['wait_ns']:.2f} off it")
    assert seconds < END_S and report_s < REPORT_S
    assert memory_mb < MEMORY_MB and file_mb < FILE_MB
    assert max(worst.values()) < POINTS


@pytest.mark.parametrize("attack", ["names", "tables", "notes", "mappings", "exec"])
def test_what_python_can_do(attack: str, tmp_path: Path) -> None:
    folder = [str(tmp_path)] if attack in ("notes", "mappings") else []
    check(tmp_path, PYTHON, program("hostile.py"), attack, *folder)


def test_a_vdso_without_call_frames_is_nobody_elses(tmp_path: Path) -> None:
    """Recordings of others use the machine's own, also those made later, with what was kept of this one."""
    path = tmp_path / "later.bpfprof"
    reads = "import time\nprint('ready', flush=True)\nwhile True: [time.monotonic() for _ in range(100)]"
    check(tmp_path, PYTHON, program("hostile.py"), "vdso")
    with running(PYTHON, "-c", reads) as honest:
        bpfprof("record", "-p", honest.pid, "-r", RATE_HZ, "-d", "2", "-o", path)
    assert json.loads(bpfprof("report", path, "-f", "json").stdout)["quality"]["stacks_complete"] > 0.98


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    """They have no names, which is said; what was recorded of others stays, and the recording is whole."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))

    check(tmp_path, PYTHON, program("hostile.py"), "files", str(tmp_path), preexec_fn=limit)
    said = " ".join(bpfprof("report", tmp_path / "x.bpfprof", "-f", "table").stdout.split())
    assert "it cannot be opened (Too many open files)" in said and "UNFINISHED" not in said


@pytest.mark.skipif(shutil.which("cc") is None, reason="the program is compiled with cc")
def test_addresses_that_are_made_up(tmp_path: Path) -> None:
    built = str(tmp_path / "hostile_addresses")
    subprocess.run(["cc", "-O1", "-pthread", "-o", built, program("hostile_addresses.c")], check=True)
    check(tmp_path, built, "20")  # 30 MB of stacks a second


@pytest.mark.skipif(shutil.which("cc") is None, reason="the program is compiled with cc")
@pytest.mark.parametrize("with_all", [False, True], ids=["target", "all"])
@pytest.mark.parametrize("flood", [("1",), ("4",), ("1", "fork")], ids=" ".join)
def test_a_flood_of_threads_or_processes_that_end(flood: tuple[str, ...], with_all: bool, tmp_path: Path) -> None:
    """Some 14,000 a second, of which those beyond a bound are not watched; the bystander loses nothing."""
    built = str(tmp_path / "thread_flood")
    subprocess.run(["cc", "-O1", "-pthread", "-o", built, program("thread_flood.c")], check=True)
    check(tmp_path, built, *flood, with_all=with_all)
    kept = losses_of(load_profile(tmp_path / "x.bpfprof", ProfileOptions()))
    assert not [each for each in kept if "python" in each.process_name]


@pytest.mark.skipif(shutil.which("cc") is None, reason="the program is compiled with cc")
@pytest.mark.parametrize("with_all", [False, True], ids=["targets", "all"])
def test_a_flood_of_switches(with_all: bool, tmp_path: Path) -> None:
    """400 threads hand bytes on while bpfprof has no CPU, as it may be where so many want one; all time has its reason.

    They have one CPU: on Linux 6.18 such threads can keep others from both for minutes, at the lowest priority, too.
    """
    built, path = str(tmp_path / "switch_flood"), tmp_path / "x.bpfprof"
    subprocess.run(["cc", "-O1", "-pthread", "-o", built, program("switch_flood.c")], check=True)
    with bystander() as beside, running("taskset", "-c", "0", built, "200") as attacker:
        targets = ["-a"] if with_all else ["-p", beside.pid, "-p", attacker.pid]
        with recording(*targets, "-r", RATE_HZ, "-o", path) as recorder:
            beside.tell("start")
            time.sleep(1)
            recorder.process.send_signal(signal.SIGSTOP)
            time.sleep(STOPPED_S)
            recorder.process.send_signal(signal.SIGCONT)
            time.sleep(1)
            answer(beside)
            done = recorder.end()
    assert done.returncode == 0, done.stderr
    profile = load_profile(path, ProfileOptions())
    assert not losses_of(profile)


@pytest.mark.skipif(shutil.which("cc") is None, reason="the program is compiled with cc")
def test_one_more_signal_ends_it_whatever_is_still_to_be_named(tmp_path: Path) -> None:
    """One perf map of 500,000 lines, which is that of 100 processes: the file is whole."""
    built = str(tmp_path / "perf_maps")
    subprocess.run(["cc", "-O1", "-o", built, program("perf_maps.c")], check=True)
    path = tmp_path / "x.bpfprof"
    with running(built, "100", "500000") as attacker:
        with recording("-p", attacker.pid, "-r", RATE_HZ, "-o", path) as recorder:
            time.sleep(WINDOW_S)
            recorder.process.send_signal(signal.SIGINT)
            begin_s = time.monotonic()
            done = recorder.end(signal.SIGTERM)
            seconds = time.monotonic() - begin_s
        attacker.end()
    print(f"ended in {seconds:.1f} s")
    assert done.returncode in (0, 5, 128 + signal.SIGTERM) and "Traceback" not in done.stderr, done.stderr
    assert seconds < END_S
    assert "UNFINISHED" not in bpfprof("report", path, "-f", "table", check=None).stdout
