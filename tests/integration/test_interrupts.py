"""Signals at random moments, of every command that records: tests/benchmarks/interrupts.py with a few of its runs."""

from __future__ import annotations

import pytest

from tests.integration.recorded import PYTHON, ROOT, completed, needs_root

pytestmark = needs_root


@pytest.mark.timeout(300)  # about 40 runs of bpfprof
def test_signals_at_random_moments() -> None:
    """What it prints has the seed, with which the same moments come again."""
    script = ROOT / "tests" / "benchmarks" / "interrupts.py"
    done = completed([PYTHON, str(script), "18", "9"], None, timeout=290)
    assert done.returncode == 0, done.stdout + done.stderr
