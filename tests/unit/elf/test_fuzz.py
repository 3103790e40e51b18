"""A few thousand damaged ELF files through every reader of them; `make fuzz` is the long run."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.mutations import Sound
from tests.unit.elf.frame_builder import CODE, FrameBuilder

SEED = 20241122
_SCRIPT = """
import sys
from pathlib import Path
from tests.unit.elf.elf_mutants import Bench
costs = Bench(Path(sys.argv[1])).try_many(int(sys.argv[2]), 3000)
print(costs.seconds, costs.mebibytes, costs.refused, costs.rows, costs.symbols, costs.debug_files)
"""


@pytest.mark.second_tier
def test_a_few_thousand_files(tmp_path: Path) -> None:
    """In a process of its own, whose memory is bounded."""
    if shutil.which("gcc") is None or shutil.which("objcopy") is None or os.uname().machine != "x86_64":
        pytest.skip("no gcc or objcopy for x86-64")
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path), str(SEED)]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    seconds, mebibytes, refused, rows, symbols, debug_files = map(float, run.stdout.split())
    assert seconds < 1 and mebibytes < 256
    # They still get as far as there is something to read.
    assert 0 < refused < 1500 and rows > 10_000 and symbols > 10_000 and debug_files > 100


def test_mutants_are_the_same_each_time() -> None:
    builder = FrameBuilder()
    builder.fde(builder.cie(), CODE, 64, b"\x41\x0e\x10")
    sound = Sound.of(builder.elf())
    first, second = random.Random(SEED), random.Random(SEED)
    assert [sound.mutant(first) for _ in range(50)] == [sound.mutant(second) for _ in range(50)]
