"""PyTorch for the tests, as Debian builds it for the CPU: `python -m tests.torch_root` makes a folder below the cache.

The wheels of PyPI are of 500 MB and more and need CUDA's. Like the CPythons of sid.py, its python3 is run by a script
that has the folder's /usr in place of the machine's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests import sid

SUITE, VERSION = "trixie", "3.13"
_VAGRANT = Path(__file__).resolve().parents[1] / "vagrant"
_PACKAGES = ["base-files", "coreutils", "dash", "python3-torch"]


def python() -> str:
    """The script that runs it; made if it is not there, which takes a minute or two and 1 GB."""
    sys.path.insert(0, str(_VAGRANT))
    import images

    folder = images.cache() / f"torch-{SUITE}"
    script = folder / f"python{VERSION}"
    with images.locked(folder.name):
        if not script.exists():
            with images.new_folder(folder) as new:
                late = 'Acquire::Check-Valid-Until "false"'
                options = ("--variant=extract", f"--aptopt={late}", f"--include={','.join(_PACKAGES)}")
                images.run("mmdebstrap", *options, SUITE, new, *images.sources((SUITE,)))
                library = new / "usr/lib/x86_64-linux-gnu"
                for name in ("blas/libblas.so.3", "lapack/liblapack.so.3"):  # what update-alternatives would do
                    (library / Path(name).name).symlink_to(name)
                (new / script.name).write_text(sid.SCRIPT.format(folder=folder, version=VERSION))
                (new / script.name).chmod(0o755)
    return str(script)


if __name__ == "__main__":
    python()
