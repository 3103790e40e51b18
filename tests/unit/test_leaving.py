"""How the command ends where a thread of its own still works, and where Ctrl-C comes before it works."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from bpfprof import cli

# Threads that are in numpy most of the time, which has C++ code; the interpreter's end would throw them out of it.
_ENDS = """
import sys, threading
from bpfprof import __main__, cli
import numpy
def work():
    while True:
        numpy.sort(numpy.arange(10_000)[::-1])
def main():
    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    print("done")
    sys.exit(int(sys.argv[1]))
cli.main = main
__main__.main()
"""


@pytest.mark.parametrize("status", [0, 5])
def test_a_thread_that_still_works_changes_nothing(status: int) -> None:
    done = subprocess.run([sys.executable, "-c", _ENDS, str(status)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "done\n", "")


INTERRUPTED = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.modules.pop(sys.argv[1], None)
import bpfprof.__main__
"""


@pytest.mark.parametrize("module", ["contextlib", "threading"])
def test_ctrl_c_while_the_first_modules_are_imported_says_nothing(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, module]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_ctrl_c_while_a_class_is_made_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python up to 3.11 makes another exception of what __set_name__() raises."""

    def interrupted(arguments: list[str]) -> int:
        raise RuntimeError("Error calling __set_name__ on 'Field' instance") from KeyboardInterrupt()

    monkeypatch.setattr(cli, "_run_command", interrupted)
    assert cli._run(["dump"], False) == 130
