"""A CPython without a GIL: its frames and its locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import free_threaded
from tests.integration.recorded import Folded, bpfprof, collapsed, needs_root, program

PYTHONS = list(free_threaded.pythons().values())
WAITED_US = 5 * 200_000
LATE_US = 300_000  # for turns in which the holder of the lock wants a CPU before and after its nap


@needs_root
@pytest.mark.skipif(not PYTHONS, reason="no free-threaded CPython (see tests/free_threaded.py)")
@pytest.mark.parametrize("has_gil", [False, True], ids=["without a GIL", "with one"])
def test_who_waits_for_what(has_gil: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    command = ("env", f"PYTHON_GIL={int(has_gil)}", PYTHONS[0], program("one_lock.py"))
    napped_us = int(bpfprof("record", "-o", path, "--", *command).stdout)  # naps end late where the machine is busy
    seen = collapsed(path)
    assert seen.total_us("spin", "cpu") == pytest.approx(2e6, rel=0.1), "two threads spin for a second of CPU time each"
    assert any(frames[-1] == "[off-cpu: gil]" for _, _, frames, _ in seen.lines) == has_gil
    waited_us = Folded([line for line in seen.lines if line[2][-1] == "[off-cpu: lock]"]).total_us("waits")
    assert WAITED_US * 0.5 < waited_us < napped_us + LATE_US, "where the machine is busy it comes to the lock late"
    assert WAITED_US * 0.98 < seen.total_us("nap", "off") < napped_us + LATE_US
    assert ("the free-threaded CPython has no GIL" in bpfprof("report", path, "--details").stdout) != has_gil
