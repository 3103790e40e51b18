"""Packages of PyPI for the interpreters that the tests record, each set in a folder of its own below the cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_VAGRANT = Path(__file__).resolve().parents[1] / "vagrant"


def folder(version: str, *packages: str) -> str:
    """What PYTHONPATH has to name for a CPython of this version (like "3.12"); fetched if it is not there."""
    sys.path.insert(0, str(_VAGRANT))
    import images

    name = "-".join(["packages", version, *packages]).replace("=", "")
    path = images.cache() / name
    with images.locked(name):
        if not path.exists():
            with images.new_folder(path) as new:
                options = ["--only-binary=:all:", "--python-version", version, "--no-compile", "--target", new]
                subprocess.run([sys.executable, "-m", "pip", "--quiet", "install", *options, *packages], check=True)
    return str(path)
