"""Programs of one file, made by PyInstaller: a source file in, the path of the program in the cache out."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from tests.integration.recorded import completed

BUILD_LIMIT_S = 400  # half a minute, where nothing else wants the CPUs


def packed(source: Path, folder: Path, *options: str) -> Path:
    """Takes half a minute, once. What is made on the way goes into the folder."""
    parts = (source.read_text(), *options, sys.version, metadata.version("pyinstaller"))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made = caches / "bpfprof-matrix" / f"pyinstaller-{key}" / source.stem
    if not made.exists():
        folders = [f"--{name}path={folder / name}" for name in ("dist", "work", "spec")]
        command = [sys.executable, "-m", "PyInstaller", "--onefile", "--log-level=ERROR", *folders, *options]
        completed([*command, str(source)], 0, timeout=BUILD_LIMIT_S)
        made.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "dist" / source.stem, made.with_suffix(".new"))
        made.with_suffix(".new").rename(made)
    return made


def child_of(pid: int) -> int:
    """Its only child."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
