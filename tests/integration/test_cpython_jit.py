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
    assert any("[memory]" in frame or "jit" in frame.lower() for line in all_frames.lines for frame in line[2][:-1])
    whole = Folded([line for line in collapsed(path).lines if not line[2][0].startswith("[truncated")])
    # On a busy machine it may wait for a CPU as the recording begins, for longer than these two percent.
    before = Folded([line for line in all_frames.lines if line[2][0] == "[truncated: stack not taken]"])
    assert before.total_us() < 0.5 * all_frames.total_us()
    assert whole.total_us() > 0.98 * (all_frames.total_us() - before.total_us())
    calls = {tuple(filter(None, way))[2:] for way in _ways(whole)}
    assert {("compute",), ("drain", "produce", "compute"), ("digest",), ("nap",)} <= calls
    # These builds are stripped: what sorts has no name, and is shown with the interpreter only.
    shown = Folded([line for line in all_frames.lines if not line[2][0].startswith("[truncated")])
    keys = [way[: way.index("key")] for way in _ways(shown) if "key" in way]
    assert keys and all(tuple(filter(None, way))[2:] == ("sort_all",) and way[-1] == "" for way in keys)


def _ways(folded: Folded) -> set[tuple[str, ...]]:
    """Python functions of each stack, with "" for each other frame."""
    named = {
        frame: frame.partition(" (")[0] if PYTHON_FRAME.fullmatch(frame) else ""
        for _, _, way, _ in folded.lines
        for frame in way
    }
    return {tuple(named[frame] for frame in way) for _, _, way, _ in folded.lines}
