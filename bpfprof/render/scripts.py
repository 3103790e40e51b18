"""Modules of scripts in assets/ -> one script, without a bundler: what is read is what runs.

Each top-level name is unique among the modules that are joined; imports and exports are lines of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

_IMPORTS = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORTS = re.compile(r"^export ", re.MULTILINE)


def asset(path: str) -> str:
    """The text of a file below assets/."""
    found = files("bpfprof.render") / "assets"
    for part in path.split("/"):
        found = found / part
    return found.read_text(encoding="utf-8")


def joined(modules: Sequence[str]) -> str:
    """Each after those whose names it uses; paths below assets/ without `.js`."""
    return "\n".join(_EXPORTS.sub("", _IMPORTS.sub("", asset(f"{name}.js"))) for name in modules)
