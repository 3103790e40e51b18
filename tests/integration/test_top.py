"""`bpfprof top` on a terminal: what a person sees, at several sizes, and what the keys do."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import shlex
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest

from tests.integration.eu_stack import wait_until_asleep
from tests.integration.recorded import BPFPROF, PYTHON, Target, bpfprof, needs_root, program, running

pytestmark = needs_root
LIMIT_S = 120  # for anything to appear on the screen


class Terminal:
    """A terminal with `bpfprof top` on it. in_shell: as a person starts it."""

    def __init__(self, folder: Path, columns: int, rows: int, in_shell: bool, *options: object) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = pty.openpty()
        self.attributes = termios.tcgetattr(slave)
        self._set_size(columns, rows)
        command = [*BPFPROF, "top", *map(str, options)]
        environment = {**os.environ, "TERM": "xterm", "PYTHONUTF8": "1", "PS1": "what now? "}
        self.process = subprocess.Popen(
            ["bash", "--norc", "-i"] if in_shell else command,
            stdin=slave,
            stdout=slave,
            stderr=slave if in_shell else subprocess.PIPE,
            cwd=folder,
            env=environment,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
        )
        self.slave = slave
        if in_shell:
            self.press(shlex.join(command) + "\n")

    def resize(self, columns: int, rows: int) -> None:
        self._set_size(columns, rows)
        self._screen.resize(rows, columns)
        self._screen.reset()

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, has_come: Callable[[list[str]], bool]) -> list[str]:
        """The lines of the screen, as soon as they are what is waited for."""
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            if select.select([self._master], [], [], 0.1)[0]:
                self._stream.feed(os.read(self._master, 65536))
            lines = [line.rstrip() for line in self._screen.display]
            if has_come(lines):
                return lines
        raise AssertionError("\n".join(["it did not come to this:", *self._screen.display]))

    def until_text(self, text: str) -> list[str]:
        return self.until(lambda lines: any(text in line for line in lines))

    def end(self) -> int:
        """The exit status, with all that was written read."""
        end_s = time.monotonic() + LIMIT_S
        while self.process.poll() is None and time.monotonic() < end_s:
            if select.select([self._master], [], [], 0.1)[0]:
                self._stream.feed(os.read(self._master, 65536))
        return self.process.wait(1)

    def hang_up(self) -> None:
        """Closes both ends."""
        os.close(self.slave)
        os.close(self._master)
        self._master = self.slave = -1

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
        if self._master >= 0:
            os.close(self._master)
            os.close(self.slave)


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """Six threads that take one lock, and write a file while they hold it."""
    with running(PYTHON, program("bounds.py"), "lock") as process:
        yield process


@pytest.fixture
def terminal(target: Target, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    with contextlib.ExitStack() as stack:

        def make(columns: int, rows: int, in_shell: bool = False) -> Terminal:
            made = Terminal(tmp_path, columns, rows, in_shell, target.pid)
            stack.callback(made.close)
            return made

        yield make


def test_keys(terminal: Callable[..., Terminal], target: Target, tmp_path: Path) -> None:
    screen = terminal(100, 30)
    screen.until(lambda lines: any(line[37:].startswith("audit ") for line in lines[:8]))
    # On a busy machine its threads may be ready without a CPU for most of the time.
    lines = screen.until(lambda lines: "audit (bounds.py" in " ".join(lines[1:5]))
    assert lines[0].startswith("bpfprof top  ") and f"({target.pid})" in lines[0]
    assert "own CPU" in lines[-1] and len(lines) == 30
    screen.press("h")
    screen.until_text("quit (Ctrl-C too)")
    screen.press("x")
    screen.until_text("[s]ort own")
    screen.press("s")
    screen.until_text("[s]ort total")
    screen.press("m")
    screen.until_text("[m]ode CPU")
    screen.press("\x1b[B")
    screen.until(lambda lines: any(line.startswith(">") for line in lines))
    screen.press("\n")
    screen.until_text("called by")
    screen.press("x")
    screen.press("mmm/zzz")
    screen.until_text("/zzz")
    screen.press("\n")
    screen.until_text("no function has zzz")
    screen.press("\x1b")
    screen.until_text("audit")
    screen.press("t")
    screen.until(lambda lines: any(line.startswith("threads") for line in lines[3:6]))
    screen.press("t")
    screen.press("p")
    screen.until_text("PAUSED")
    screen.press("p")
    screen.press("w")
    screen.until_text("[w]indow all")
    screen.press("o")
    written = screen.until_text("written: bpfprof-top-")
    screen.press("d")
    screen.until_text("WAITING")
    screen.press("x")
    screen.press("f")
    screen.until_text(".svg")
    screen.press("q")
    assert screen.end() == 0
    assert termios.tcgetattr(screen.slave) == screen.attributes, "the terminal is as it was"
    (name,) = (line.split()[1] for line in written if line.startswith("written: "))
    report = json.loads(bpfprof("report", tmp_path / name, "-f", "json").stdout)
    assert report["verdict"]["where"]["function"] == "audit", report["verdict"]
    (picture,) = tmp_path.glob("*.svg")
    assert "audit" in picture.read_text()


def test_sizes(terminal: Callable[..., Terminal]) -> None:
    screen = terminal(200, 50)
    screen.until_text("audit")
    for columns, rows in ((60, 12), (80, 24)):
        screen.resize(columns, rows)
        lines = screen.until(lambda lines: "own CPU" in lines[-1] and any("audit" in line for line in lines))
        assert len(lines) == rows and all(len(line) <= columns for line in lines)
    screen.press("\x1b[B\x1b[B\x1b[B")  # an arrow that is held down
    screen.until(lambda lines: any(line.startswith(">") for line in lines))
    screen.press("\x03")
    assert screen.end() == 0, "Ctrl-C ends it as q does"


def test_it_stops_as_others_do_and_goes_on(terminal: Callable[..., Terminal]) -> None:
    screen = terminal(100, 30, in_shell=True)
    screen.until_text("own CPU")
    screen.press("\x1a")
    screen.until_text("Stopped")
    screen.press("clear; stty -a\n")
    screen.until_text("susp = ^Z")
    screen.press("fg\n")
    screen.until_text("own CPU")
    screen.press("h")
    screen.until_text("quit (Ctrl-C too)")
    screen.press("x")
    screen.until_text("own CPU")
    screen.press("q")
    screen.until(lambda lines: any(line.startswith("what now?") for line in lines))
    screen.press("exit\n")
    assert screen.end() == 0


def test_it_ends_with_its_terminal(terminal: Callable[..., Terminal]) -> None:
    screen = terminal(100, 30)
    screen.until_text("own CPU")
    screen.hang_up()
    _, said = screen.process.communicate(timeout=LIMIT_S)
    assert (screen.process.returncode, said) == (0, "")


@pytest.mark.gate
def test_tables_that_nobody_reads_on(target: Target) -> None:
    with subprocess.Popen(
        [*BPFPROF, "top", str(target.pid), "-b", "-d", "0.5"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("bpfprof top")
        process.stdout.close()
        assert process.wait(LIMIT_S) == 0 and process.stderr.read() == ""


@pytest.mark.gate
def test_tables_where_there_is_no_screen(target: Target) -> None:
    shown = bpfprof("top", target.pid, "-d", 1, "-n", 2).stdout
    tables = [part for part in shown.split("bpfprof top  ") if part]
    assert len(tables) == 2 and "\x1b" not in shown
    for table in tables:
        first, *_ = (line for line in table.splitlines() if "bounds.py:" in line and line.startswith(" "))
        assert " audit " in first, table


@pytest.mark.gate
def test_a_deadlock_is_said_as_record_does() -> None:
    with running(PYTHON, program("stuck.py"), "circle") as stuck:
        wait_until_asleep(stuck.pid)
        shown = bpfprof("top", stuck.pid, "-d", 2, "-n", 3).stdout
    assert "Deadlocked: left -> right -> left, each waits for what the next one has" in shown


@pytest.mark.gate
def test_it_ends_with_what_it_watches(tmp_path: Path) -> None:
    with running(PYTHON, program("bounds.py"), "sleep") as short:
        process = subprocess.Popen(
            [*BPFPROF, "top", str(short.pid), "-d", "0.5"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith("bpfprof top")
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0 and "has ended" in said, said
