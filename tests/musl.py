"""A CPython 3.13 on musl for docs/interpreters.md: `python -m tests.musl` makes it.

Debian has the C library (package musl-tools) and no Python for it, so it is built from the source of trixie's, with the
modules that need no other library. It runs where it was built.
"""

from __future__ import annotations

from pathlib import Path

from tests import builds

# The headers of Linux are with those of glibc; gcc says that its own libraries are for that.
_COMPILER = """#!/bin/sh
[ "$1" = --print-multiarch ] && echo x86_64-linux-musl && exit
exec musl-gcc -idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu "$@"
"""


def python() -> str:
    """Its path; built if it is not there, which takes two minutes of two CPUs."""
    (source,) = (builds.made(f"python-{builds.SOURCE_VERSION}-musl", _make) / "source").iterdir()
    return str(source / "python")


def _make(new: Path) -> None:
    compiler = new / "compiler"
    compiler.write_text(_COMPILER)
    compiler.chmod(0o755)
    builds.make_python(new, f"CC={compiler}")


if __name__ == "__main__":
    print(python())
