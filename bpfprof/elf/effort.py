"""How much is done for the unwind table of one file."""

from __future__ import annotations

from bpfprof.dataclass import dataclass


@dataclass(frozen=True)
class Effort:
    """What one file may cost."""

    code_bytes: int
    instructions: int
    steps: int  # of 1 us
    functions: int


# Debian's OpenBLAS has 11 MB of assembly for every processor, the one of numpy 2.9 MB. PyPI's libtorch_cpu 2.13 has
# 36 MB of MKL's, which take 3 s.
USUAL = Effort(11 << 20, 5 << 19, 250_000, 8192)
THOROUGH = Effort(44 << 20, 5 << 21, 1_000_000, 16384)
