"""Signals at random moments, of every command that records: tests/benchmarks/interrupts.py with a few of its runs."""

from __future__ import annotations

from tests.integration.recorded import PYTHON, ROOT, completed, needs_root

pytestmark = needs_root


def test_signals_at_random_moments() -> None:
    """What it prints has the seed, with which the same moments come again."""
    script = ROOT / "tests" / "benchmarks" / "interrupts.py"
    done = completed([PYTHON, str(script), "27", "9"], None, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
