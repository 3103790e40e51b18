"""What the integration tests share: interpreters, target programs, runs of the command, and reading what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
BPFPROF = [sys.executable, "-m", "bpfprof"]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="loading BPF programs needs root")


def interpreters() -> dict[str, str]:
    """Version -> path of each interpreter whose frames bpfprof walks: pyenv's of the user and the distribution's own."""
    found = {}
    homes = {Path.home(), Path("/root"), *Path("/home").glob("*")}
    for version in ("3.11", "3.12", "3.13"):
        for home in homes:
            paths = sorted((home / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
            if paths:
                found[version] = str(paths[-1])
    if Path("/usr/bin/python3.11").exists():
        found["debian-3.11"] = "/usr/bin/python3.11"
    return found


INTERPRETERS = interpreters()
every_interpreter = pytest.mark.parametrize("python", list(INTERPRETERS.values()), ids=list(INTERPRETERS))


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


@contextmanager
def running(*command: str, env: dict[str, str] | None = None) -> Iterator[Target]:
    """A program that prints one line when it is ready and ends when its standard input closes."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
    )
    try:
        assert process.stdout is not None
        first_line = process.stdout.readline()
        assert first_line, f"{command} did not start"
        yield Target(process, first_line)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def program(name: str) -> str:
    """Path of a target program."""
    return str(PROGRAMS / name)


def bpfprof(*arguments: str | int | Path | float, check: int | None = 0, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end; `check` is the exit code it must have (None: any)."""
    done = subprocess.run(
        [*BPFPROF, *map(str, arguments)], capture_output=True, text=True, cwd=options.pop("cwd", None), **options
    )
    if check is not None:
        assert done.returncode == check, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@dataclass
class Folded:
    """A collapsed report: lines of (process, thread, frames, microseconds)."""

    lines: list[tuple[str, str, tuple[str, ...], int]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Folded:
        folded = cls()
        for line in path.read_text().splitlines():
            stack, weight = line.rsplit(" ", 1)
            process, thread, *frames = stack.split(";")
            folded.lines.append((process, thread, tuple(frames), int(weight)))
        return folded

    def of_thread(self, tid: int) -> Folded:
        """The lines of one thread."""
        return Folded([line for line in self.lines if line[1].endswith(f"({tid})")])

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


def json_line(line: str) -> dict[str, object]:
    """A line of JSON a program printed."""
    content = json.loads(line)
    assert isinstance(content, dict)
    return content
