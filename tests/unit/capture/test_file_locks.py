"""Who has a file locked, by the path that a process has for it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfprof.capture.file_locks import FileLocks
from bpfprof.model.ids import Pid

OWN = Pid(os.getpid())


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that this process has locked, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


def test_who_has_a_file_by_its_path(locked: Path) -> None:
    assert FileLocks(OWN).holder_of(str(locked)) == OWN
    assert FileLocks(OWN).holder_of("lock") == OWN


def test_nobody_has_a_file_that_is_free_or_not_there(locked: Path) -> None:
    (locked.parent / "free").touch()
    for path in ("free", "absent", str(locked.parent), ""):
        assert FileLocks(OWN).holder_of(path) is None


@pytest.mark.parametrize("path", ["../{}/lock", "lock\0", "\ud800", "x" * 5000])
def test_a_path_is_what_the_process_says(locked: Path, path: str) -> None:
    """Which may be anything."""
    assert FileLocks(OWN).holder_of(path.format(locked.parent.name)) is None
    assert FileLocks(OWN).holder_of("lock") == OWN
