"""Functions that the stacks of a process lead through, found without rules: every word there that points into code.

A large file's functions are read on demand (unwind/on_demand.py). A stack that ends in one tells of that one alone.
What lies on the stacks tells of all that wait for one another there, and of those that returned lately. A word that
only looks like the address of an instruction costs that its function is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpfprof import array_types as npt
from bpfprof.code.jit_code import Row
from bpfprof.elf.leb128 import Ints
from bpfprof.errors import TargetError
from bpfprof.model.ids import Pid
from bpfprof.proc.maps import read_stack_ranges
from bpfprof.proc.memory import ProcessMemory

_MOST_BYTES = 16 << 20  # of all stacks of a process, in turns of some ms
_STACK_BYTES, _LEAST_BYTES = 256 << 10, 16 << 10  # of one, from its beginning on
_STACKS = 1024
_WORD_BYTES = 8


def callers(pid: Pid, rows: Sequence[Row]) -> dict[int, Ints]:
    """For each file in these mappings, by number: ELF addresses at which its functions called others, each once."""
    starts, ends, biases, numbers = np.array(sorted(rows), np.int64).reshape(-1, 4).T
    found: dict[int, list[Ints]] = {}
    for words in _stack_words(pid):
        at = words[(words > starts[0]) & (words <= ends[-1])].astype(np.int64) - 1
        at = np.unique(at)
        place = np.searchsorted(starts, at, side="right") - 1
        at, place = at[at < ends[place]], place[at < ends[place]]
        for number in np.unique(numbers[place]).tolist():
            of_file = numbers[place] == number
            found.setdefault(number, []).append(at[of_file] - biases[place[of_file]])
    return {number: np.unique(np.concatenate(parts)) for number, parts in found.items()}


def _stack_words(pid: Pid) -> list[npt.NDArray[np.uint64]]:
    """Of each stack of a process the words from its beginning on."""
    try:
        stacks = read_stack_ranges(pid)[:_STACKS]
        memory = ProcessMemory(pid)
    except TargetError:
        return []
    most = max(_LEAST_BYTES, min(_STACK_BYTES, _MOST_BYTES // max(1, len(stacks))))
    with memory:
        parts = [memory.read_up_to(max(start, end - most), min(most, end - start)) for start, end in stacks]
    return [np.frombuffer(part, np.uint64, len(part) // _WORD_BYTES) for part in parts]
