"""Path of a Python file -> the part of it from where it is imported, by which people know it."""

from __future__ import annotations

import re

# Folders that Python imports from, wherever it is installed: site-packages (Lib/site.py), Debian's dist-packages, and
# the standard library (Lib/sysconfig.py), which may be a ZIP file.
_FOLDER = re.compile(r"(?<=/)(?:site-packages|dist-packages|lib(?:64)?/(?:python|pypy)\d+(?:\.\d+)?t?|python\d+\.zip)/")
_OF_A_PACKAGE = ("/__init__.py", "/__main__.py")


def import_depth(path: str) -> int:
    """How many of its last components say what is imported: 2 of `/usr/lib/python3/dist-packages/flask/app.py`.

    Of a file below no such folder 1, its name, or 2 where that alone says nothing.
    """
    end = 0
    for found in _FOLDER.finditer(path):
        end = found.end()
    return 1 + path.count("/", end) if end else 1 + path.endswith(_OF_A_PACKAGE)


def import_path(path: str) -> str:
    """Those components: `flask/app.py`."""
    return path if path.startswith("<") else "/".join(path.rsplit("/", import_depth(path))[-import_depth(path) :])
