"""Programs that would stop or fill up who profiles them, each beside an honest one, which keeps its profile."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.recorded import PYTHON, bpfprof, needs_root, program, recording, running

pytestmark = needs_root
WINDOW_S = 4
END_S = 15.0  # from the end of the recording to that of bpfprof, which has made a summary by then
REPORT_S = 15.0
MEMORY_MB = 500
FILE_MB = 100
# The bystander computes in two functions in turn, as long in each. With 70 turns of 5 to 25 ms, and 150 samples at the
# least, the share of one has a standard deviation of 4.6 points: 25 are seen less than once in 10 million times.
SHARE_POINTS = 25
NAMED = 0.9  # of its CPU time


def peak_kb(pid: int) -> int:
    """What the process itself had in memory at most, which getrusage() does not tell from those it was forked from."""
    with open(f"/proc/{pid}/status") as file:
        found = re.search(r"^VmHWM:\s+(\d+) kB", file.read(), re.MULTILINE)
    return int(found[1]) if found else 0


def check(folder: Path, *attack: str) -> None:
    """Records a bystander and an attack; prints what it took."""
    path = folder / "x.bpfprof"
    with ExitStack() as stack:
        bystander = stack.enter_context(running(PYTHON, program("known.py")))
        attacker = stack.enter_context(running(*attack))
        begin_s = time.monotonic()
        recorder = stack.enter_context(
            recording("-p", bystander.pid, "-p", attacker.pid, "-r", 499, "-d", WINDOW_S, "-o", path)
        )
        memory_kb = 0
        while recorder.process.poll() is None:
            memory_kb = max(memory_kb, peak_kb(recorder.process.pid))
            time.sleep(0.02)  # of the last moments the peak is not known
        seconds = time.monotonic() - begin_s
        done = recorder.end(None)
        assert done.returncode == 0, done.stderr
    begin_s = time.monotonic()
    report = json.loads(bpfprof("report", path, "--process", rf"\({bystander.pid}\)", "-f", "json").stdout)
    report_s = time.monotonic() - begin_s
    memory_mb, file_mb = memory_kb / 1024, path.stat().st_size / 2**20
    cpu = {row["function"]: row["cpu_self_s"] for row in report["rows"]}
    named = (cpu["count"] + cpu["digest"]) / report["totals"]["cpu_s"]
    share = 100 * cpu["count"] / (cpu["count"] + cpu["digest"])
    print(f"{seconds:.1f} s, {memory_mb:.0f} MB, file {file_mb:.1f} MB, report {report_s:.1f} s", end=", ")
    print(f"bystander {report['totals']['cpu_s']:.2f} s of CPU, {100 * named:.1f}% named, {share:.1f}% in count")
    assert seconds < WINDOW_S + END_S and report_s < REPORT_S
    assert memory_mb < MEMORY_MB and file_mb < FILE_MB
    assert named > NAMED and abs(share - 50) < SHARE_POINTS


@pytest.mark.parametrize("attack", ["names", "tables", "notes", "mappings", "exec"])
def test_what_python_can_do(attack: str, tmp_path: Path) -> None:
    folder = [str(tmp_path)] if attack in ("notes", "mappings") else []
    check(tmp_path, PYTHON, program("hostile.py"), attack, *folder)


@pytest.mark.skipif(shutil.which("cc") is None, reason="the program is compiled with cc")
def test_addresses_that_are_made_up(tmp_path: Path) -> None:
    built = str(tmp_path / "hostile_addresses")
    subprocess.run(["cc", "-O1", "-pthread", "-o", built, program("hostile_addresses.c")], check=True)
    check(tmp_path, built, "20")  # 30 MB of stacks a second
