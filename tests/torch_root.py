"""PyTorch for the tests, as Debian builds it for the CPU: `python -m tests.torch_root` makes a folder below the cache.

The wheels of PyPI are of 500 MB and more and need CUDA's. Like the CPythons of sid.py, its python3 is run by a script
that has the folder's /usr in place of the machine's.
"""

from __future__ import annotations

from pathlib import Path

from tests import builds, sid

SUITE, VERSION = "trixie", "3.13"
_PACKAGES = ["base-files", "coreutils", "dash", "python3-torch"]


def python() -> str:
    """The script that runs it; made if it is not there, which takes a minute or two and 1 GB."""
    return str(builds.made(f"torch-{SUITE}", _make) / f"python{VERSION}")


def _make(new: Path) -> None:
    builds.make_root(new, SUITE, _PACKAGES)
    library = new / "usr/lib/x86_64-linux-gnu"
    for name in ("blas/libblas.so.3", "lapack/liblapack.so.3"):  # what update-alternatives would do
        (library / Path(name).name).symlink_to(name)
    script = new / f"python{VERSION}"
    script.write_text(sid.SCRIPT.format(folder=builds.folder(f"torch-{SUITE}"), version=VERSION))
    script.chmod(0o755)


if __name__ == "__main__":
    python()
