"""A free-threaded CPython 3.13 for the tests, in a folder of its own below the cache.

`python tests/free_threaded.py` makes it. Debian has no package of one, so it is built from the source of trixie's. Of
3.14 and 3.15 there is none: mirrors do not keep the sources of what sid had for a while.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VERSION = "3.13"
_VAGRANT = Path(__file__).resolve().parents[1] / "vagrant"
# Little optimisation, which takes a third of the time, and no tests of its own.
_OPTIONS = ["--disable-gil", "--enable-shared", "--disable-test-modules", "--without-ensurepip", "CFLAGS=-O1"]


def folder() -> Path:
    """Where it is, or would be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "bpfprof-matrix" / f"python-{VERSION}t"


def pythons() -> dict[str, str]:
    """Version -> path; empty where it was not made."""
    path = folder() / "bin" / f"python{VERSION}t"
    return {f"{VERSION}t": str(path)} if path.exists() else {}


def make() -> None:
    """Takes three minutes of two CPUs, once."""
    if pythons():
        return
    sys.path.insert(0, str(_VAGRANT))
    import images

    with images.locked(folder().name), images.new_folder(folder()) as new:
        lists = images.PackageLists("trixie", kind="deb-src")
        source = lists.unpack_source(f"python{VERSION}", new / "source")
        target = folder()  # it is moved there when it is complete
        images.run("./configure", "-q", *_OPTIONS, f"--prefix={target}", f"LDFLAGS=-Wl,-rpath,{target}/lib", cwd=source)
        images.run("make", "-s", f"-j{os.cpu_count() or 1}", cwd=source)
        images.run("make", "-s", "altinstall", f"DESTDIR={new / 'root'}", cwd=source)
        for each in (new / "root").joinpath(*target.parts[1:]).iterdir():
            each.rename(new / each.name)
        images.run("rm", "-rf", new / "source", new / "root")


if __name__ == "__main__":
    make()
