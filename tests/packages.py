"""Packages of PyPI, and extensions made with them, for the interpreters that the tests record; kept below the cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests import builds


def folder(version: str, *packages: str) -> str:
    """What PYTHONPATH has to name for a CPython of this version (like "3.12"); fetched if it is not there."""

    def fetch(new: Path) -> None:
        options = ["--only-binary=:all:", "--python-version", version, "--no-compile", "--target", new]
        subprocess.run([sys.executable, "-m", "pip", "--quiet", "install", *options, *packages], check=True)

    return str(builds.made("-".join(["packages", version, *packages]).replace("=", ""), fetch))


def site_packages(version: str, *packages: str) -> str:
    """The same in a folder whose name says that what is in it is a library, no code of the program's own."""
    parent = Path(folder(version, *packages))
    link = parent / "site-packages"
    if not link.exists():
        link.symlink_to(".")
    return str(link)


def source(requirement: str) -> Path:
    """The unpacked source of a package of pure Python, for its tests."""

    def fetch(new: Path) -> None:
        options = ["--no-binary=:all:", "--no-deps", "--dest", new]
        subprocess.run([sys.executable, "-m", "pip", "--quiet", "download", *options, requirement], check=True)
        (archive,) = new.glob("*.tar.gz")
        subprocess.run(["tar", "-xzf", archive, "--strip-components=1", "-C", new], check=True)

    return builds.made(f"source-{requirement.replace('=', '')}", fetch)


def extensions(python: str, path: str, *sources: str) -> str:
    """A folder with these modules (.pyx, and .cpp with pybind11) made for an interpreter; `path` has the compilers."""

    def make(new: Path) -> None:
        for source in sources:
            _make(python, path, Path(source), new)

    content = b"".join([python.encode(), path.encode(), *(Path(source).read_bytes() for source in sources)])
    return str(builds.made("extensions-" + hashlib.sha256(content).hexdigest()[:12], make))


def _make(python: str, path: str, source: Path, folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": path}
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"]
    headers = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    if source.suffix == ".pyx":
        made = folder / f"{source.stem}.c"
        subprocess.run([python, "-m", "cython", "-o", made, source], check=True, env=environment)
        source = made
    flags = ["-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{headers}", f"-I{path}/pybind11/include"]
    compiler = "c++" if source.suffix == ".cpp" else "cc"
    subprocess.run([compiler, *flags, "-o", folder / f"{source.stem}.so", source], check=True)
