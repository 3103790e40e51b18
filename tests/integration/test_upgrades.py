"""A program whose interpreter and libraries were replaced since it began, as an upgrade does: its names stay right."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.recorded import INTERPRETERS, Target, bpfprof, collapsed, needs_root, program, running

pytestmark = needs_root


@contextmanager
def upgraded(folder: Path, python: Path, other: Path) -> Iterator[Target]:
    """part_time.py, run by a copy of an interpreter whose files are another version's by now, under the same names."""
    (library,) = python.parents[1].glob("lib/libpython3.*.so.1.0")
    (new_library,) = other.parents[1].glob("lib/libpython3.*.so.1.0")
    here, binary = folder / library.name, folder / "python-upgraded"
    shutil.copy(library, here)
    shutil.copy(python, binary)
    env = {"LD_LIBRARY_PATH": str(folder), "PYTHONHOME": str(python.parents[1])}
    with running(str(binary), program("part_time.py"), "--busy-ms", "30", env=env) as target:
        assert str(here) in Path(f"/proc/{target.pid}/maps").read_text()
        for new, old in ((new_library, here), (other, binary)):
            shutil.copy(new, folder / "new")
            os.replace(folder / "new", old)
        assert f"{here} (deleted)" in Path(f"/proc/{target.pid}/maps").read_text()
        yield target


@pytest.mark.parametrize("how", ["one", "all"])
def test_names_are_those_of_the_files_that_are_mapped(how: str, tmp_path: Path) -> None:
    pythons = [Path(INTERPRETERS[version]).resolve() for version in ("3.12", "3.11")]
    with upgraded(tmp_path, *pythons) as target:
        what = ["-a"] if how == "all" else ["-p", target.pid]
        bpfprof("record", *what, "-d", 4, "-o", tmp_path / "x.bpfprof", "--show-interpreter")
    folded = collapsed(tmp_path / "x.bpfprof", "--show-interpreter").of_process(target.pid)
    assert folded.functions() >= {"main", "turn", "count", "join", "_PyEval_EvalFrameDefault", "Py_RunMain"}
    assert folded.total_us("turn") > 0.2e6  # ready to run, at least
    frames = {frame for _, _, stack, _ in folded.lines for frame in stack}
    assert not any(frame.startswith("libpython3.12.so.1.0+") for frame in frames), frames
    cut_us = sum(us for _, _, stack, us in folded.lines if stack[0].startswith("[truncated"))
    assert cut_us < 0.1 * folded.total_us(), "what was taken before the program was looked at"
