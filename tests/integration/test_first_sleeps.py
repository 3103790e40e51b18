"""Threads that begin to sleep before it is known how to walk their stacks, and sleep on."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.recorded import PYTHON, bpfprof, collapsed, needs_root, program, recording, running

pytestmark = [
    needs_root,
    pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="OpenBLAS is taken from numpy"),
]
SLEEPS = """
import ctypes, sys, time
ctypes.CDLL(sys.argv[1])
time.sleep(float(sys.argv[2]))
"""
PARKS = """
import ctypes, sys
print("ready", flush=True)
for library in sys.argv[1:]:
    sys.stdin.readline()
    ctypes.CDLL(library)
    print("loaded", flush=True)
sys.stdin.readline()
"""


def openblas() -> Path:
    """The library that numpy brings along."""
    import numpy

    (found,) = (Path(numpy.__file__).parent.parent / "numpy.libs").glob("libscipy_openblas*")
    return found


def recorded(folder: Path, seconds: float) -> dict[str, dict[tuple[str, ...], int]]:
    """Microseconds of each stack of each thread."""
    folder.mkdir()
    library, path = folder / "libopenblas_new.so", folder / "x.bpfprof"
    shutil.copy(openblas(), library)
    with open(library, "ab") as file:  # another size: another file
        file.write(str(folder).encode() * 3)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2", "LD_LIBRARY_PATH": str(openblas().parent)}
    bpfprof("record", "-o", path, "--", PYTHON, "-c", SLEEPS, library, seconds, env=environment)
    threads: dict[str, dict[tuple[str, ...], int]] = {}
    for _, thread, frames, weight in collapsed(path).lines:
        threads.setdefault(thread, {})[tuple(frames)] = weight
    return threads


def test_pool_threads_that_are_parked_before_their_library_has_a_table(tmp_path: Path) -> None:
    """Its table is not in the cache, and takes some 0.3 s of a CPU, for which a busy machine is given more time, and
    one more try; its threads sleep soon after it was loaded, for good.
    """
    for seconds in (3, 12, 24):
        threads = recorded(tmp_path / f"{seconds}", seconds)
        longest = [max(stacks, key=lambda frames: stacks[frames]) for stacks in threads.values()]
        if not any(frames[0].startswith("[truncated: ") for frames in longest):
            break
    assert len(threads) == 2
    for stacks, frames in zip(threads.values(), longest):
        assert stacks[frames] > 2_000_000
        assert frames[0].partition(" (")[0] in ("_start", "clone3", "__clone3"), frames
        assert frames[-1] in ("[off-cpu: sleep]", "[off-cpu: lock]")
    assert any("blas_thread_server (libopenblas_new.so)" in frames for stacks in threads.values() for frames in stacks)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five that start a thread as they are loaded, which sleeps at once."""
    found = [tmp_path_factory.mktemp("parks") / f"libparks_{number}.so" for number in range(5)]
    for library in found:
        # Optimised, so that frames are found by the stack pointer alone, which is known of one who sleeps.
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-pthread", "-o", library, program("parks.c")], check=True)
    return found


@pytest.mark.skipif(shutil.which("cc") is None, reason="the libraries are compiled with cc")
def test_threads_that_sleep_before_the_mapping_of_their_library_is_known(libraries: list[Path], tmp_path: Path) -> None:
    """They do so some 0.1 ms after it was mapped, and nothing is heard of them any more."""
    path = tmp_path / "x.bpfprof"
    wanted = {f"parked ({library.name})" for library in libraries}
    for seconds in (2, 20):  # a busy machine may need more for the tables
        with (
            running(PYTHON, "-c", PARKS, *map(str, libraries)) as target,
            recording("-p", target.pid, "-o", path) as recorder,
        ):
            for _ in libraries:
                target.tell("")
                assert target.answer() == "loaded\n"
            time.sleep(seconds)  # the length of their sleep
            assert recorder.end().returncode == 0
        threads: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
        for _, thread, frames, weight in collapsed(path).lines:
            threads.setdefault(thread, []).append((weight, frames))
        # What each does longest: a sample may have met it as it began.
        stacks = [frames for _, frames in map(max, threads.values()) if wanted & {*frames}]
        if len(stacks) == len(wanted):
            break
    assert {name for frames in stacks for name in frames} & wanted == wanted, stacks
    for frames in stacks:
        assert frames[0].partition(" (")[0] in ("clone3", "__clone3") and frames[-1] == "[off-cpu: sleep]", frames
