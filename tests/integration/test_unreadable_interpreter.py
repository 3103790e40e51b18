"""A Python whose file bpfprof may not read: it is said which, and by whom, not that there is no Python."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.recorded import bpfprof, needs_root, open_folder, program, running

STATIC = Path("/usr/bin/python3").resolve()  # with all of the interpreter in its own file

pytestmark = [
    needs_root,
    pytest.mark.gate,
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no FUSE"),
    pytest.mark.skipif(not STATIC.name.startswith("python3."), reason="no Python of the distribution's own"),
]


@pytest.mark.parametrize("name", [STATIC.name, pytest.param("AppRun", marks=pytest.mark.second_tier)])
@pytest.mark.parametrize("seen_by", [(), ("itself",)], ids=["a mount of all", "a mount of its own"])
def test_on_a_mount_of_its_users_own(name: str, seen_by: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with (
        open_folder() as folder,
        running("/usr/bin/python3", program("own_mount.py"), str(folder), str(STATIC), name, *seen_by) as target,
    ):
        pid = target.first_line.split()[1]
        told = bpfprof("record", "--pid", pid, "-d", 1, "-o", path)
        shown = bpfprof("dump", pid).stdout
        target.end()
    why = f"{folder}/{name} cannot be read by root: Permission denied (a fuse.own mount that only user 4242 may read)"
    for text in (told.stderr, shown):
        assert f"whether it runs Python is not known: {why}" in text and "no Python interpreter" not in text
    shown = "".join(told.stdout.split())  # lines are broken at hyphens, too
    assert ("".join(why.split()) in shown) == (name != "AppRun")
