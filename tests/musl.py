"""A CPython 3.13 on musl for the tests, in a folder of its own below the cache: `python tests/musl.py` makes it.

Debian has the C library (package musl-tools) and no Python for it, so it is built from the source of trixie's, with the
modules that Python itself needs and no others: there is no zlib, and no `select`. It runs where it was built.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VERSION = "3.13"
_VAGRANT = Path(__file__).resolve().parents[1] / "vagrant"
_OPTIONS = ["--disable-test-modules", "--without-ensurepip", "CFLAGS=-O1"]
# The headers of Linux are with those of glibc; gcc says that its own libraries are for that.
_COMPILER = """#!/bin/sh
[ "$1" = --print-multiarch ] && echo x86_64-linux-musl && exit
exec musl-gcc -idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu "$@"
"""


def folder() -> Path:
    """Where it is, or would be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "bpfprof-matrix" / f"python-{VERSION}-musl"


def pythons() -> dict[str, str]:
    """Version -> path; empty where it was not made."""
    path = folder() / "source" / "python"
    return {f"{VERSION}-musl": str(path)} if path.exists() else {}


def make() -> None:
    """Takes two minutes of two CPUs, once."""
    if pythons():
        return
    sys.path.insert(0, str(_VAGRANT))
    import images

    with images.locked(folder().name), images.new_folder(folder()) as new:
        lists = images.PackageLists("trixie", kind="deb-src")
        lists.unpack_source(f"python{VERSION}", new / "unpacked").rename(new / "source")
        compiler = new / "compiler"
        compiler.write_text(_COMPILER)
        compiler.chmod(0o755)
        images.run("./configure", "-q", f"CC={compiler}", *_OPTIONS, cwd=new / "source")
        images.run("make", "-s", f"-j{os.cpu_count() or 1}", "python", cwd=new / "source")


if __name__ == "__main__":
    make()
