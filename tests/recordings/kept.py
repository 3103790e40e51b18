"""The recordings that are kept: which there are, and how one is read."""

from __future__ import annotations

import lzma
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
NAMES = sorted(path.name.partition(".")[0] for path in HERE.glob("*.bpfprof.xz"))


@cache
def content(name: str) -> bytes:
    """The bytes of the recording's file."""
    return lzma.decompress((HERE / f"{name}.bpfprof.xz").read_bytes())


def unpacked(name: str, folder: Path) -> Path:
    """The recording as a file in this folder."""
    path = folder / f"{name}.bpfprof"
    path.write_bytes(content(name))
    return path
