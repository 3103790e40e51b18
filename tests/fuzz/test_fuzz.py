"""Some seconds of each fuzzer, with a seed that stays the same. `make fuzz` is the long run, with others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import FUZZERS

ROOT = Path(__file__).resolve().parents[2]
SEED = 20251125
# Twice as many as come in that time, and all are known to break none: a faster machine tries nothing that nobody has.
COUNTS = {"recordings": 1000, "elf": 4000, "call-frames": 10_000, "jit-names": 20_000, "interpreter": 20_000}


@pytest.mark.parametrize("name", FUZZERS)
def test_damaged_input_breaks_no_bound(name: str) -> None:
    """In a process of its own, whose memory is bounded. What it prints has the seed and where the input is."""
    if name == "elf" and (os.uname().machine != "x86_64" or not FUZZERS["elf"].is_possible()):
        pytest.skip("no gcc or objcopy for x86-64")
    command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", "6", "--count", str(COUNTS[name])]
    run = subprocess.run([*command, "--seed", str(SEED)], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " inputs, seed " in run.stdout
