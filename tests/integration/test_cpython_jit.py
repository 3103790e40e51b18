"""CPython's own JIT: its code has no unwind rules, and its stacks are whole and in order all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.recorded import (
    INTERPRETERS,
    PYTHON_FRAME,
    Folded,
    bpfprof,
    collapsed,
    needs_root,
    program,
    running,
)

JIT_BUILDS = {name: INTERPRETERS[name] for name in ("sid-3.14", "sid-3.15") if name in INTERPRETERS}

pytestmark = [needs_root, pytest.mark.skipif(not JIT_BUILDS, reason="no CPython of Debian sid (make test-tools)")]


@pytest.mark.parametrize("python", JIT_BUILDS.values(), ids=list(JIT_BUILDS))
def test_stacks_through_jit_code(python: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(python, program("jit_calls.py"), env={"PYTHON_JIT": "1"}) as target:
        bpfprof("record", "-p", target.pid, "-r", 999, "-d", 1, "-o", path)
    all_frames = collapsed(path, "--show-interpreter")
    assert any("[memory]" in frame for _, _, frames, _ in all_frames.lines for frame in frames)
    whole = Folded([line for line in collapsed(path).lines if not line[2][0].startswith("[truncated")])
    assert whole.total_us() > 0.98 * all_frames.total_us()
    ways = {
        tuple(frame.partition(" (")[0] for frame in frames if PYTHON_FRAME.fullmatch(frame) or "sort" in frame)[2:]
        for _, _, frames, _ in whole.lines
    }
    assert {("compute",), ("drain", "produce", "compute"), ("digest",), ("nap",)} <= ways
    keys = {way for way in ways if "key" in way}
    assert keys and all(way[0] == "sort_all" and "sort" in way[way.index("key") - 1] for way in keys), keys
