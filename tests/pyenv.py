"""Where pyenv keeps its CPythons, whoever runs the tests and whatever HOME is."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

_HOMES = (Path(pwd.getpwuid(os.getuid()).pw_dir), Path("/root"), *sorted(Path("/home").glob("*")))
_FOLDERS = [Path(os.environ.get("PYENV_ROOT") or _HOMES[0] / ".pyenv"), *(home / ".pyenv" for home in _HOMES)]


def paths(pattern: str) -> list[Path]:
    """What there is like it ("3.12.*/bin/python") in the first of the folders that has any."""
    found = (sorted((folder / "versions").glob(pattern)) for folder in _FOLDERS)
    return next(filter(None, found), [])
