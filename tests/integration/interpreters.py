"""The CPythons of this machine: pyenv's, the system's python3, and Debian sid's."""

from __future__ import annotations

from pathlib import Path

from tests import pyenv, sid


def _find_pyenvs(major: int) -> dict[str, str]:
    paths = pyenv.paths(f"{major}.*/bin/python{major}")
    return {f"pyenv-{path.parent.parent.name}": str(path) for path in paths}


def _find_pythons() -> dict[str, str]:
    """Name -> path of each interpreter, by version."""
    found = _find_pyenvs(3)
    system = Path("/usr/bin/python3").resolve()
    if system.name.startswith("python3."):
        found[f"system-{system.name.removeprefix('python')}"] = str(system)
    return found


# Sid's have their files in a mount namespace of their own, where not every tool looks.
MACHINE_PYTHONS = _find_pythons()
PYTHONS = {**MACHINE_PYTHONS, **{f"sid-{version}": path for version, path in sid.pythons().items()}}
PYTHONS_2 = _find_pyenvs(2)


def minor(name: str) -> tuple[int, int]:
    """Its minor version: (3, 11) of "pyenv-3.11.7"."""
    numbers = name.partition("-")[2].split(".")
    return int(numbers[0]), int(numbers[1])
