"""`bpfprof top` of a program whose stacks take long to read: it ends when it is told to, whatever it is at."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.recorded import BPFPROF, PYTHON, needs_root, program, running
from tests.integration.test_top import Terminal

pytestmark = [needs_root, pytest.mark.skipif(shutil.which("cc") is None, reason="a library is compiled with cc")]
# 1 s, and what a machine takes besides on which others want the CPUs, too.
END_S = 2.5
FIRST_TABLE_S = 6.0  # its start and a second, three times over, beside a program that takes both CPUs
TABLES = 3  # of which each takes longer to make than the one before, while more is recorded
ENDS: dict[str, Callable[[Terminal], None]] = {
    "q": lambda terminal: terminal.press("q"),
    "Ctrl-C": lambda terminal: terminal.press("\x03"),
    "SIGTERM": lambda terminal: terminal.process.send_signal(signal.SIGTERM),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("attack", ["tables", "codes"])
def test_it_ends_at_once(attack: str, end: str, tmp_path: Path) -> None:
    command = [program("hostile.py"), attack]
    if attack == "codes":
        built = str(tmp_path / "hostile_frames.so")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", built, program("hostile_frames.c")], check=True)
        command = [program("hostile_interpreter.py"), built, attack]
    with running(PYTHON, *command) as attacker:
        terminal = Terminal(tmp_path, 100, 30, False, "-p", attacker.pid)
        try:
            shown: list[str] = []
            for _ in range(TABLES):
                shown = terminal.until(lambda lines, before=shown: "%" in " ".join(lines) and lines != before)  # type: ignore[misc]
            begin_s = time.monotonic()
            ENDS[end](terminal)
            code = terminal.end()
            seconds = time.monotonic() - begin_s
            said = terminal.process.stderr.read() if terminal.process.stderr else ""
        finally:
            terminal.close()
    print(f"ended in {seconds:.2f} s")
    assert code == 0 and "Traceback" not in said, said
    assert seconds < END_S


@pytest.mark.parametrize("with_all", [False, True], ids=["target", "all"])
def test_tables_come_beside_a_flood_of_threads(with_all: bool, tmp_path: Path) -> None:
    """The first one came after 22 s once, and 40 s later it had not ended."""
    built = str(tmp_path / "thread_flood")
    subprocess.run(["cc", "-O1", "-pthread", "-o", built, program("thread_flood.c")], check=True)
    with running(built, "1") as attacker:
        targets = ["-a"] if with_all else ["-p", str(attacker.pid)]
        begin_s = time.monotonic()
        command = [*BPFPROF, "top", *targets, "-b", "-d", "1", "-n", "3"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("bpfprof top")
            first_s = time.monotonic() - begin_s
            process.communicate()
            end_s = time.monotonic() - begin_s
    print(f"first table after {first_s:.1f} s, ended after {end_s:.1f} s")
    assert process.returncode == 0 and first_s < FIRST_TABLE_S and end_s < FIRST_TABLE_S + 2 + END_S
