"""Numba's code is walked and has its names, also when it is compiled while the recording runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import packages
from tests.integration.recorded import (
    INTERPRETERS,
    bpfprof,
    collapsed,
    let_run,
    needs_root,
    program,
    recording,
    running,
)

VERSION = "3.12"
pytestmark = [needs_root, pytest.mark.skipif(VERSION not in INTERPRETERS, reason="no CPython 3.12 under ~/.pyenv")]
CPU_S = 6  # what runs until code that was just made is looked at is a small part of it, on a busy machine too


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("numba") / "numba.bpfprof"
    environment = {"PYTHONPATH": packages.folder(VERSION, "numba")}
    command = INTERPRETERS[VERSION], program("compiled_late.py")
    with running(*command, env=environment) as target, recording("-p", target.pid, "-r", 499, "-o", path) as recorder:
        target.tell("compile")
        assert target.answer() == "compiled\n"
        let_run(target.pid, CPU_S)
        recorder.end()
    yield path


def test_stacks_are_whole(path: Path) -> None:
    quality = " ".join(bpfprof("report", path, "--details").stdout.split())
    complete = re.search(r"stacks ([\d.]+)% complete", quality)
    assert complete and float(complete[1]) >= 95, quality


@pytest.mark.parametrize("name", ["early", "late"])
def test_its_functions_stand_below_their_callers(path: Path, name: str) -> None:
    found = 0
    for _, _, frames, weight in collapsed(path).lines:
        jitted = [place for place, frame in enumerate(frames) if f"{name}_fib" in frame and frame.endswith("([jit])")]
        callers = [place for place, frame in enumerate(frames) if frame.startswith(f"calls_{name} (")]
        if jitted and not frames[0].startswith("[truncated"):
            assert len(callers) == 1 and callers[0] < jitted[0], frames
            found += weight
    assert found > 300_000  # microseconds
