"""Where the parts of bpfprof that are not Python lie."""

from __future__ import annotations

from pathlib import Path


def ebpf_directory() -> Path:
    """The kernel-side sources: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "_ebpf"
    return installed if installed.is_dir() else package.parent / "ebpf"
