"""Debian sid's CPythons for the tests, in a folder of their own below the cache: `python tests/sid.py` makes it.

They need a newer C library than this machine may have. So each is run by a script that has the folder's /usr in place
of the machine's, in a mount namespace of its own; everything else is where it always is. That takes root.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VERSIONS = ("3.14", "3.15")
# What docs/interpreters.md has beside them, in a folder of its own: `make interpreters` makes it.
MORE_VERSIONS = ("3.13", "3.14-dbg", "3.15-dbg")
_VAGRANT = Path(__file__).resolve().parents[1] / "vagrant"
_PACKAGES = ["base-files", "libc6-dbg", "coreutils", "dash"]
_FOR_EXTENSIONS = ["gcc", "libc6-dev", *(f"libpython{version}-dev" for version in VERSIONS)]
# The process stays the same from the script to the interpreter.
SCRIPT = """#!/bin/sh
exec unshare --mount sh -c 'mount --bind "$1/usr" /usr; shift; exec "$@"' sh {folder} /usr/bin/python{version} "$@"
"""


def folder(versions: tuple[str, ...] = VERSIONS) -> Path:
    """Where they are, or would be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "bpfprof-matrix" / ("pythons-sid" if versions == VERSIONS else "pythons-sid-more")


def pythons(versions: tuple[str, ...] = VERSIONS) -> dict[str, str]:
    """Version -> path of the script that runs it; empty where they were not made or cannot be run."""
    scripts = {version: folder(versions) / "scripts" / f"python{version}" for version in versions}
    return {version: str(path) for version, path in scripts.items() if os.geteuid() == 0 and path.exists()}


def make(versions: tuple[str, ...] = VERSIONS) -> None:
    """Takes 12 seconds and 500 MB, once."""
    if len(pythons(versions)) == len(versions):
        return
    sys.path.insert(0, str(_VAGRANT))
    import images

    target = folder(versions)
    packages = [*_PACKAGES, *(_FOR_EXTENSIONS if versions == VERSIONS else ()), *(f"python{it}" for it in versions)]
    with images.locked(target.name), images.new_folder(target) as new:
        late = 'Acquire::Check-Valid-Until "false"'
        options = ("--variant=extract", f"--aptopt={late}", f"--include={','.join(packages)}")
        images.run("mmdebstrap", *options, "sid", new, *images.sources(("sid",)))
        if versions == VERSIONS:
            (new / "usr/bin/cc").symlink_to("gcc")
        (new / "scripts").mkdir()
        for version in versions:
            script = new / "scripts" / f"python{version}"
            script.write_text(SCRIPT.format(folder=target, version=version))
            script.chmod(0o755)


if __name__ == "__main__":
    make()
