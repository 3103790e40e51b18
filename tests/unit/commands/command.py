"""The command line as a function, for commands that record nothing."""

from __future__ import annotations

from pathlib import Path

from bpfprof import cli
from tests.unit.recording.hand_made import HandMade, file_bytes


def run(*arguments: str | Path) -> int:
    """The exit code."""
    return cli._run([str(argument) for argument in arguments], False)


def written(made: HandMade, folder: Path, name: str = "a.bpfprof") -> Path:
    """A file that holds the recording."""
    path = folder / name
    path.write_bytes(file_bytes(made.chunks()))
    return path
