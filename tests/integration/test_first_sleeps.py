"""Threads that begin to sleep before it is known how to walk their stacks, and sleep on."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from tests.integration.recorded import PYTHON, bpfprof, collapsed, needs_root

pytestmark = [
    needs_root,
    pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="OpenBLAS is taken from numpy"),
]
SLEEPS = """
import ctypes, sys, time
ctypes.CDLL(sys.argv[1])
time.sleep(2)
"""


def openblas() -> Path:
    """The library that numpy brings along."""
    import numpy

    (found,) = (Path(numpy.__file__).parent.parent / "numpy.libs").glob("libscipy_openblas*")
    return found


def test_pool_threads_that_are_parked_before_their_library_has_a_table(tmp_path: Path) -> None:
    """Its table is not in the cache, and takes some 0.3 s; its threads sleep soon after it was loaded, for good."""
    library, path = tmp_path / "libopenblas_new.so", tmp_path / "x.bpfprof"
    shutil.copy(openblas(), library)
    with open(library, "ab") as file:  # another size: another file
        file.write(tmp_path.name.encode() * 3)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2", "LD_LIBRARY_PATH": str(openblas().parent)}
    bpfprof("record", "-o", path, "--", PYTHON, "-c", SLEEPS, library, env=environment)
    threads: dict[str, dict[tuple[str, ...], int]] = {}
    for _, thread, frames, weight in collapsed(path).lines:
        threads.setdefault(thread, {})[tuple(frames)] = weight
    assert len(threads) == 2
    for stacks in threads.values():
        longest = max(stacks, key=lambda frames: stacks[frames])
        assert stacks[longest] > 1_500_000
        assert longest[0].partition(" (")[0] in ("_start", "clone3", "__clone3"), longest
        assert longest[-1] in ("[off-cpu: sleep]", "[off-cpu: lock]")
    assert any("blas_thread_server (libopenblas_new.so)" in frames for stacks in threads.values() for frames in stacks)
