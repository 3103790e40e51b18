"""A collection of garbage stands as one frame where it ran: between what allocated and the finalizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfprof.stacks.interpreter_frames import begins_collection
from tests.integration.recorded import KINDS_OF_INTERPRETERS, bpfprof, collapsed, needs_root, program

# Debian's are stripped: it is found where a collection begins, up to 3.13; what that calls has no names.
KNOWN = {name: path for name, path in KINDS_OF_INTERPRETERS.items() if not name.startswith("sid-")}


@needs_root
@pytest.mark.parametrize("python", list(KNOWN.values()), ids=list(KNOWN))
def test_where_garbage_is_collected(python: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    bpfprof("record", "-r", 999, "-o", path, "--", python, program("garbage.py"))
    collecting_us = finalizing_us = 0
    for _, _, frames, weight in collapsed(path).lines:
        names = [frame.rpartition(" (")[0] for frame in frames]
        if "allocate" not in names or names[0].startswith("[truncated"):
            continue
        below = names[names.index("allocate") :]
        assert not any(map(begins_collection, below)), names
        finalizer = next((name for name in below if name.endswith("__del__")), None)
        if finalizer:
            assert below.index("<GC>") < below.index(finalizer), names
            finalizing_us += weight
        is_stripped = "<GC>" in below and not below[-1].rpartition(".")[2].isidentifier()
        collecting_us += weight if below[-1] == "<GC>" or is_stripped else 0
    assert collecting_us > 30_000 and finalizing_us > 200_000
