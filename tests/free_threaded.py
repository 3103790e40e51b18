"""A free-threaded CPython 3.13 for the tests: `python -m tests.free_threaded` makes it.

Debian has no package of one, so it is built from the source of trixie's. Of 3.14 and 3.15 there is none: mirrors do not
keep the sources of what sid had for a while.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests import builds

FOLDER = builds.folder(f"python-{builds.SOURCE_VERSION}t")


def pythons() -> dict[str, str]:
    """Version -> path; empty where it was not made."""
    path = FOLDER / "bin" / f"python{builds.SOURCE_VERSION}t"
    return {f"{builds.SOURCE_VERSION}t": str(path)} if path.exists() else {}


def _make(new: Path) -> None:
    """Takes three minutes of two CPUs."""
    options = ("--disable-gil", "--enable-shared", f"--prefix={FOLDER}", f"LDFLAGS=-Wl,-rpath,{FOLDER}/lib")
    source = builds.make_python(new, *options)
    builds.images().run("make", "-s", "altinstall", f"DESTDIR={new / 'root'}", cwd=source)
    for each in (new / "root").joinpath(*FOLDER.parts[1:]).iterdir():
        each.rename(new / each.name)
    shutil.rmtree(new / "source")
    shutil.rmtree(new / "root")


if __name__ == "__main__":
    builds.made(FOLDER.name, _make)
