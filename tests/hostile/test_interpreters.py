"""A real CPython whose structures then point anywhere: its walk is bounded and marked, and others keep theirs."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.hostile.test_targets import check
from tests.integration.recorded import ALL_INTERPRETERS, PYTHON, bpfprof, needs_root, program, running

pytestmark = [needs_root, pytest.mark.skipif(shutil.which("cc") is None, reason="the library is compiled with cc")]
DUMP_S = 15.0  # 5 s for code objects, and what a machine takes that others use as well
KINDS = ["loop", "circle", "long", "codes", "kernel", "holes", "changing", "threads"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    built = str(tmp_path_factory.mktemp("library") / "hostile_frames.so")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", built, program("hostile_frames.c")], check=True)
    return built


@pytest.mark.parametrize("with_all", [False, True], ids=["target", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_frames_that_are_made_up(kind: str, with_all: bool, library: str, tmp_path: Path) -> None:
    check(tmp_path, PYTHON, program("hostile_interpreter.py"), library, kind, with_all=with_all)
    if kind != "threads" and not with_all:  # of that one the frames are true
        found = json.loads(bpfprof("report", tmp_path / "x.bpfprof", "-f", "json").stdout)
        assert found["quality"]["stacks_complete"] < 0.9  # of the bystander all are


@pytest.mark.skipif("3.13" not in ALL_INTERPRETERS, reason="no CPython that says its own offsets")
@pytest.mark.parametrize("with_all", [False, True], ids=["target", "all"])
def test_offsets_that_are_made_up(with_all: bool, library: str, tmp_path: Path) -> None:
    """Such as may be true: the structures of an interpreter that is accepted are read at other places."""
    check(tmp_path, ALL_INTERPRETERS["3.13"], program("hostile_interpreter.py"), library, "offsets", with_all=with_all)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dump_ends(kind: str, library: str) -> None:
    with running(PYTHON, program("hostile_interpreter.py"), library, kind) as target:
        begin_s = time.monotonic()
        threads = json.loads(bpfprof("dump", target.pid, "-j").stdout)["processes"][0]["threads"]
        assert time.monotonic() - begin_s < DUMP_S and len(threads) == 3
