"""What the tests get or build once, interpreters and packages, each in a folder of its own below the cache."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE_VERSION = "3.13"  # of trixie's source package
_VAGRANT = Path(__file__).resolve().parents[1] / "vagrant"


def folder(name: str) -> Path:
    """Where it is, or would be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "bpfprof-matrix" / name


def made(name: str, make: Callable[[Path], None]) -> Path:
    """The folder; if it is not there, one process makes it, and others wait for it."""
    path = folder(name)
    with images().locked(name):
        if not path.exists():
            with images().new_folder(path) as new:
                make(new)
    return path


def images() -> Any:
    """The module that makes the roots of the kernel matrix; it needs more than the tests in a virtual machine have."""
    if str(_VAGRANT) not in sys.path:
        sys.path.insert(0, str(_VAGRANT))
    return importlib.import_module("images")


def make_root(new: Path, suite: str, packages: list[str]) -> None:
    """Unpacks packages of Debian and what they need, configuring none."""
    late = 'Acquire::Check-Valid-Until "false"'
    options = ("--variant=extract", f"--aptopt={late}", f"--include={','.join(packages)}")
    images().mmdebstrap(*options, suite, new, *images().sources((suite,)))


def make_python(new: Path, *options: str) -> Path:
    """Configures and builds trixie's CPython; the folder of its source, in `new`."""
    unpacked = images().PackageLists("trixie", kind="deb-src").unpack_source(f"python{SOURCE_VERSION}", new / "source")
    # Little optimisation, which takes a third of the time, and no tests of its own.
    fixed = ("-q", "--disable-test-modules", "--without-ensurepip", "CFLAGS=-O1")
    images().run("./configure", *fixed, *options, cwd=unpacked)
    images().run("make", "-s", f"-j{os.cpu_count() or 1}", cwd=unpacked)
    return Path(unpacked)
