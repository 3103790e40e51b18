"""How much is done for code of one file that says nothing of its stack."""

from __future__ import annotations

from bpfprof.dataclass import dataclass


@dataclass(frozen=True)
class Effort:
    """What one file may cost."""

    code_bytes: int
    instructions: int
    steps: int  # of 1 us
    functions: int


# Of a file whose functions are not read on demand (unwind/on_demand.py): the assembly of a usual one is some 100 KB.
USUAL = Effort(11 << 20, 5 << 19, 250_000, 8192)
