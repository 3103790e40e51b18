"""Programs that hang among all processes of the machine. Nothing else runs: how many others there are counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command.test_stuck import KINDS, assert_stuck, stuck
from tests.integration.recorded import PYTHON, bpfprof, needs_root

pytestmark = needs_root


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "stopped"])
def test_it_is_stuck_among_all_processes_of_the_machine(kind: str, tmp_path: Path) -> None:
    with stuck(PYTHON, kind) as pid:
        bpfprof("record", "-a", "-d", "2", "-o", tmp_path / "x.bpfprof")
    assert_stuck(kind, pid, tmp_path / "x.bpfprof")
