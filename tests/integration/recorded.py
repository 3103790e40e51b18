"""What the integration tests share: interpreters, target programs, runs of the command, and reading what it wrote."""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bpfprof.render.formats import FORMATS
from tests import free_threaded, pyenv, sid

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
# The command as it is installed, not `python -m`: that would import from the current folder.
BPFPROF = [str(Path(sys.executable).with_name("bpfprof"))]
LOADER = "/lib64/ld-linux-x86-64.so.2"  # System V ABI, AMD64 supplement, section 5.2.1
LONGEST_RUN_S = 300  # what takes some seconds, beside others on a busy machine
NOBODY = 65534

TEXT_FORMATS = tuple(
    each for each in FORMATS if each.name not in ("pprof", "pstats", "parquet")
)  # the others are binary

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="loading BPF programs needs root")


def interpreters(*versions: str) -> dict[str, str]:
    """Version -> path of each interpreter of these versions: pyenv's and the distribution's own, and sid's."""
    found = {}
    for version in versions:
        if paths := pyenv.paths(f"{version}.*/bin/python"):
            found[version] = str(paths[-1])
    if "3.11" in versions and Path("/usr/bin/python3.11").exists():
        found["debian-3.11"] = "/usr/bin/python3.11"
    return {**found, **{f"sid-{version}": path for version, path in sid.pythons().items() if version in versions}}


INTERPRETERS = interpreters("3.11", "3.12", "3.13", "3.14", "3.15")
# Their frames are of another kind. They run the tests of what that makes a difference for.
OLD_INTERPRETERS = interpreters("3.6", "3.7", "3.8", "3.9", "3.10")
ALL_INTERPRETERS = {**INTERPRETERS, **OLD_INTERPRETERS, **free_threaded.pythons()}
# What the programs use of 3.7 and 3.8, for those before.
_ADDED = {"PYTHONPATH": str(PROGRAMS / "before_3_8")}
_BEFORE_3_8 = {OLD_INTERPRETERS.get("3.6"), OLD_INTERPRETERS.get("3.7")}
# The one for tests in which the version is of no matter; the command itself runs on it.
PYTHON = sys.executable
# `make test INTERPRETERS=all` asks all of them; else those that differ in what a test is about are asked.
ASKS_ALL = os.environ.get("INTERPRETERS") == "all"


def _one_of_each(all_of_them: dict[str, str], *names: str) -> dict[str, str]:
    return {name: path for name, path in all_of_them.items() if ASKS_ALL or name in names}


# By how their frames, lines and GIL are read.
KINDS_OF_INTERPRETERS = _one_of_each(ALL_INTERPRETERS, "3.6", "3.10", "debian-3.11", "3.12", "3.13t", "sid-3.15")
# A shared one and a static one: where no more than that can make a difference.
SOME_INTERPRETERS = _one_of_each(INTERPRETERS, "3.12", "sid-3.15")
some_interpreters = pytest.mark.parametrize("python", list(SOME_INTERPRETERS.values()), ids=list(SOME_INTERPRETERS))


@dataclass
class Target:
    """A running program; `first_line` is what it printed when it was ready."""

    process: subprocess.Popen[str]
    first_line: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> str:
        """Closes its standard input, which ends it; returns what it printed last."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        answer = self.answer()
        self.process.wait(LONGEST_RUN_S)
        return answer


@contextmanager
def running(*command: str, env: dict[str, str] | None = None, folder: Path | None = None) -> Iterator[Target]:
    """A program that prints one line when it is ready and ends when its standard input closes.

    It works in a folder of its own (or this one), where its home and its temporary files are, too. What it starts in
    its session ends with it.
    """
    place = folder or Path(tempfile.mkdtemp(prefix="target-", dir=os.environ.get("TMPDIR")))
    own = {"HOME": str(place), "TMPDIR": str(place), **(_ADDED if command[0] in _BEFORE_3_8 else {}), **(env or {})}
    pipe = subprocess.PIPE
    try:
        place.chmod(0o1777)  # it may run as another user
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **own}, cwd=place, start_new_session=True
        )
        try:
            assert process.stdout is not None
            first_line = process.stdout.readline()
            assert first_line, f"{command} did not start"
            yield Target(process, first_line)
        finally:
            if process.returncode is None:  # else its number may be another's
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
    finally:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)


def cpu_s(pid: int, of_children: bool = False) -> float:
    """CPU time of a process since it began, in ticks of 10 ms; or of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    first = 13 if of_children else 11  # proc(5)
    return (int(fields[first]) + int(fields[first + 1])) / os.sysconf("SC_CLK_TCK")


def let_run(pid: int, seconds: float, of_children: bool = False) -> None:
    """Until it (or its children) has had so much CPU time from now on, however busy the machine is."""
    end_s, deadline_s = cpu_s(pid, of_children) + seconds, time.monotonic() + LONGEST_RUN_S
    while cpu_s(pid, of_children) < end_s and time.monotonic() < deadline_s:
        time.sleep(0.05)


def program(name: str) -> str:
    """Path of a target program."""
    return str(PROGRAMS / name)


def bpfprof(*arguments: str | int | Path | float, check: int | None = 0, **options: Any) -> Done:
    """Runs the command to its end; `check` is the exit code it must have (None: any)."""
    return completed([*BPFPROF, *map(str, arguments)], check, **options)


def checked(path: Path) -> Done:
    """`report --check`: every thread adds up. That the kernel left out a switch, as it does at times, is no fault."""
    done = bpfprof("report", path, "--check", check=None)
    is_untold = re.fullmatch(r"bpfprof: [\d,]+ switch(es)? not told by the kernel: .*\n", done.stderr)
    assert done.returncode == (5 if is_untold else 0), f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


Done = subprocess.CompletedProcess[str]


def completed(command: list[str], check: int | None, **options: Any) -> Done:
    """Runs a command line to its end, in a session of its own."""
    options = {"stdin": subprocess.DEVNULL, "timeout": LONGEST_RUN_S, "start_new_session": True, **options}
    done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", check=False, **options)
    if check is not None:
        assert done.returncode == check, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def assert_told(done: Done, exit_code: int, *words: str) -> None:
    """It ended with this code and a sentence that holds the words, not with a traceback."""
    assert done.returncode == exit_code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr and "internal error" not in done.stderr, done.stderr
    for word in words:
        assert word.lower() in done.stderr.lower(), f"no {word!r} in: {done.stderr}"


@dataclass
class Recorder:
    """A `bpfprof record` under way. `heard` is what it had said on standard error when it began to record."""

    process: subprocess.Popen[bytes]
    heard: str = ""

    def wait_until_it_records(self) -> None:
        assert self.process.stderr is not None
        while line := self.process.stderr.readline().decode():  # unbuffered: nothing after the line is taken
            self.heard += line
            if line.startswith("recording "):
                return
        raise AssertionError(f"it did not record, exit code {self.process.wait()}:\n{self.heard}")

    def end(self, number: int | None = signal.SIGINT) -> Done:
        """Sends the signal (None: lets it end by itself) and waits for the end."""
        if number is not None:
            self.process.send_signal(number)
        stdout, stderr = self.process.communicate(timeout=LONGEST_RUN_S)
        return Done(self.process.args, self.process.returncode, stdout.decode(), self.heard + stderr.decode())


@contextmanager
def started(*arguments: str | int | Path | float, **options: Any) -> Iterator[Recorder]:
    """`bpfprof record` with these arguments, at its very start; in a session of its own."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = [*BPFPROF, "record", *map(str, arguments)]
    process = subprocess.Popen(command, bufsize=0, **{"start_new_session": True, **options})
    try:
        yield Recorder(process)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def recording(*arguments: str | int | Path | float, **options: Any) -> Iterator[Recorder]:
    """`bpfprof record` with these arguments, once it records."""
    with started(*arguments, **options) as recorder:
        recorder.wait_until_it_records()
        yield recorder


@contextmanager
def open_folder(owner: int = 0) -> Iterator[Path]:
    """A folder that every user can enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="bpfprof-test-", dir="/tmp") as name:
        os.chmod(name, 0o755)
        os.chown(name, owner, owner)
        yield Path(name)


def user_with_groups() -> pwd.struct_passwd:
    """An ordinary user, one with further groups where there is one."""
    users = [entry for entry in pwd.getpwall() if entry.pw_uid >= 1000]
    members = {name for group in grp.getgrall() for name in group.gr_mem}
    return min(users, key=lambda entry: (entry.pw_name not in members, entry.pw_uid == NOBODY))


# Options of subprocess that run a command as an ordinary user.
AS_NOBODY: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}


def skip_unless_nobody_can_run() -> None:
    """The checkout may lie in a home that other users cannot enter."""
    for path in (BPFPROF[0], str(ROOT / "bpfprof" / "cli.py")):
        if completed(["test", "-r", path], None, **AS_NOBODY).returncode != 0:
            pytest.skip(f"the checkout's folder is closed to other users: user {NOBODY} cannot read {path}")


_WHO = r"process [^;\n]+ \(\d+\);thread [^;\n]+ \(\d+\)"
_REASON = (
    r"(?:gil|lock|sleep|disk|net|pipe|poll|child|device|pagefault|stopped|unknown|kernel-lock|file-lock|syscall \w+)"
)
_MARK = r"\[(?:not sampled|short waits)\]"
_FRAME = rf"(?:[^;\n]+ \([^;\n]+\)(?:_\[i\])?|[^;\n]+_\[k\]|[^;\n]+\+0x[0-9a-f]+(?:_\[i\])?|{_MARK})"
# The text contract of a collapsed line (PRODUCT.md); CPU time that no sample fell into has a frame that says so.
COLLAPSED_LINE = re.compile(
    rf"{_WHO}(?:;\[truncated: [^;\]\n]+\])?(?:;{_FRAME})*(?:;\[off-cpu: {_REASON}\]|;\[runqueue\])? [1-9]\d*"
)
# Native frames look alike; no object is called like this.
PYTHON_FRAME = re.compile(r"(?P<name>[^;]+) \((?P<file>[^;()]+\.py|<[^;()]+>)(?::(?P<line>\d+))?\)")


@dataclass
class Folded:
    """A collapsed report: lines of (process, thread, frames, microseconds)."""

    lines: list[tuple[str, str, tuple[str, ...], int]] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Folded:
        folded = cls()
        for line in text.splitlines():
            stack, weight = line.rsplit(" ", 1)
            process, thread, *frames = stack.split(";")
            folded.lines.append((process, thread, tuple(frames), int(weight)))
        return folded

    @classmethod
    def read(cls, path: Path) -> Folded:
        return cls.parse(path.read_text())

    def of_thread(self, tid: int) -> Folded:
        """The lines of one thread."""
        return Folded([line for line in self.lines if line[1].endswith(f"({tid})")])

    def of_process(self, pid: int) -> Folded:
        """The lines of one process."""
        return Folded([line for line in self.lines if line[0].endswith(f"({pid})")])

    def functions(self) -> set[str]:
        """Names of all functions."""
        return {frame.rpartition(" (")[0] for _, _, frames, _ in self.lines for frame in frames}

    def total_us(self, function: str = "", kind: str = "") -> int:
        """Microseconds of stacks with this function; kind is cpu, off, runqueue, or "" for all."""
        total = 0
        for _, _, frames, weight in self.lines:
            leaf = frames[-1] if frames else ""
            is_kind = {
                "": True,
                "off": leaf.startswith("[off-cpu"),
                "runqueue": leaf == "[runqueue]",
                "cpu": not leaf.startswith("[off-cpu") and leaf != "[runqueue]",
            }[kind]
            if is_kind and (not function or any(frame.startswith(function + " (") for frame in frames)):
                total += weight
        return total


def collapsed(path: Path, *options: str) -> Folded:
    """What `bpfprof report -f collapsed` says of a recording that is whole."""
    return Folded.parse(bpfprof("report", path, "-f", "collapsed", *options).stdout)


def json_line(line: str) -> dict[str, Any]:
    """A line of JSON a program printed."""
    content = json.loads(line)
    assert isinstance(content, dict)
    return content
