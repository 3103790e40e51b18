"""Who has a file locked, by the path that a process has for it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfprof.capture.file_locks import FileLocks
from bpfprof.model.ids import Pid
from bpfprof.proc import tasks

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


RESERVED, PENDING, SHARED, WAL_WRITE = (
    "1073741825 1073741825",
    "1073741824 1073741825",
    "1073741826 1073742335",
    "120 120",
)


@pytest.mark.parametrize(
    ("locks", "holders"),
    [
        ([("7", "WRITE", RESERVED)], {"7"}),
        ([("7", "WRITE", RESERVED), ("own", "READ", SHARED)], {"7"}),  # who waits reads meanwhile
        ([("own", "READ", SHARED)], set()),
        ([("own", "WRITE", RESERVED), ("own", "READ", SHARED)], {"own"}),
        ([("own", "WRITE", WAL_WRITE)], {"own"}),
        ([("own", "WRITE", RESERVED), ("7", "READ", SHARED)], {"own", "7"}),  # either of them
        ([("own", "WRITE", PENDING), ("7", "READ", SHARED)], {"7"}),  # it waits for who reads
        ([("own", "WRITE", PENDING)], {"own"}),
        ([("own", "WRITE", "0 EOF"), ("7", "WRITE", "0 99")], set()),  # not of a database
    ],
)
def test_who_a_connection_to_a_database_waits_for(
    locks: list[tuple[str, str, str]], holders: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        ["1:", "POSIX", "ADVISORY", kind, pid.replace("own", str(OWN)), "00:2a:99", *region.split()]
        for pid, kind, region in locks
    ]
    monkeypatch.setattr(tasks, "file_locks", lambda: lines)
    found = FileLocks(OWN)._sqlite_locks().get(99, set())
    assert found == {pid.replace("own", str(OWN)) for pid in holders}
