"""`bpfprof top` of a program whose stacks take long to read: it ends when it is told to, whatever it is at."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.recorded import PYTHON, needs_root, program, running
from tests.integration.test_top import Terminal

pytestmark = [needs_root, pytest.mark.skipif(shutil.which("cc") is None, reason="a library is compiled with cc")]
# 1 s, and what a machine takes besides on which others want the CPUs, too.
END_S = 2.5
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
