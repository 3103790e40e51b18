"""Debian sid's CPythons for the tests: `python -m tests.sid` makes the folder of them.

They need a newer C library than this machine may have. So each is run by a script that has the folder's /usr in place
of the machine's, in a mount namespace of its own; everything else is where it always is. That takes root.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests import builds

VERSIONS = ("3.14", "3.15")
# What docs/interpreters.md has beside them, in a folder of its own: `make interpreters` makes it.
MORE_VERSIONS = ("3.13", "3.14-dbg", "3.15-dbg")
_PACKAGES = ["base-files", "libc6-dbg", "coreutils", "dash"]
_FOR_EXTENSIONS = ["gcc", "libc6-dev", *(f"libpython{version}-dev" for version in VERSIONS)]
# The process stays the same from the script to the interpreter.
SCRIPT = """#!/bin/sh
exec unshare --mount sh -c 'mount --bind "$1/usr" /usr; shift; exec "$@"' sh {folder} /usr/bin/python{version} "$@"
"""


def folder(versions: tuple[str, ...] = VERSIONS) -> Path:
    """Where they are, or would be."""
    return builds.folder("pythons-sid" if versions == VERSIONS else "pythons-sid-more")


def pythons(versions: tuple[str, ...] = VERSIONS) -> dict[str, str]:
    """Version -> path of the script that runs it; empty where they were not made or cannot be run."""
    scripts = {version: folder(versions) / "scripts" / f"python{version}" for version in versions}
    return {version: str(path) for version, path in scripts.items() if os.geteuid() == 0 and path.exists()}


def make(versions: tuple[str, ...] = VERSIONS) -> None:
    """Takes 12 seconds and 500 MB, once."""
    target = folder(versions)

    def fill(new: Path) -> None:
        builds.make_root(
            new,
            "sid",
            [*_PACKAGES, *(_FOR_EXTENSIONS if versions == VERSIONS else ()), *(f"python{it}" for it in versions)],
        )
        if versions == VERSIONS:
            (new / "usr/bin/cc").symlink_to("gcc")
        (new / "scripts").mkdir()
        for version in versions:
            script = new / "scripts" / f"python{version}"
            script.write_text(SCRIPT.format(folder=target, version=version))
            script.chmod(0o755)

    builds.made(target.name, fill)


if __name__ == "__main__":
    make()
