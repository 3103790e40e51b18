"""Which waits of a profile are looked at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bpfprof.model.profile import WaitTable

# States of a thread off the CPU, as sched_switch has them (include/linux/sched.h), by their letters in ps and names.
# TASK_IDLE, of kernel threads without work, is TASK_UNINTERRUPTIBLE with TASK_NOLOAD: here it is the latter alone.
_UNINTERRUPTIBLE, _NO_LOAD = 2, 0x400
_STATES = {"S": 1, "D": _UNINTERRUPTIBLE, "T": 4 | 8, "I": _NO_LOAD, "P": 0x40}
_NAMES = {
    **{"interruptible": 1, "uninterruptible": _UNINTERRUPTIBLE, "stopped": 4, "traced": 8},
    **{"idle": _NO_LOAD, "parked": 0x40},
}


@dataclass(frozen=True, slots=True)
class WaitFilter:
    """`task_states` is a mask as task_states() gives, 0: every state."""

    min_block_ns: int = 0
    task_states: int = 0
    hides_idle: bool = False
    holds_gil: bool = False

    @property
    def text(self) -> str:
        """`, in state uninterruptible, of 1000 us or more`; "" of all waits."""
        names = [name for name, state in _NAMES.items() if self.task_states & state]
        other = self.task_states & ~sum(_NAMES.values())
        states = " or ".join([*names, *[f"0x{other:x}"] * bool(other)])
        length = f", of {self.min_block_ns // 1000:,} us or more" if self.min_block_ns else ""
        holding = ", holding the GIL" if self.holds_gil else ""
        return holding + (f", in state {states}" if states else "") + length

    @property
    def is_open(self) -> bool:
        """Whether it lets every wait pass that is not idle: then short waits, of which less is known, belong too."""
        return not self.min_block_ns and not self.task_states and not self.holds_gil


def task_states(text: str) -> int:
    """`S,D`, `SD`, `uninterruptible` or a mask like `2` as a mask. Raises ValueError for anything else."""
    mask = 0
    for word in text.split(","):
        word = word.strip()
        if word.isdecimal() and word.isascii() and 0 < int(word) <= 0xFFFF:
            mask |= int(word)
        elif word.lower() in _NAMES:
            mask |= _NAMES[word.lower()]
        elif word and set(word.upper()) <= set(_STATES):
            mask |= sum(_STATES[letter] for letter in set(word.upper()))
        else:
            known = ", ".join([*_STATES, *_NAMES])
            raise ValueError(f"{word!r} is no state of a waiting thread; they are {known}")
    return mask


def chosen_rows(table: WaitTable, chosen: WaitFilter) -> npt.NDArray[np.int64]:
    """Places in `table.rows`, in order, of the waits that pass; a thread that could run all the time did not wait."""
    rows = table.rows
    passes = (rows["total_ns"] > 0) & (rows["blocked_ns"] >= np.uint64(chosen.min_block_ns))
    if chosen.task_states:
        states = rows["task_state"].copy()
        states[states & _NO_LOAD > 0] &= np.uint16(~_UNINTERRUPTIBLE & 0xFFFF)
        passes &= (states & np.uint16(chosen.task_states)) != 0
    if chosen.hides_idle:
        passes &= ~rows["is_idle"]
    if chosen.holds_gil:
        passes &= rows["holds_gil"]
    return np.flatnonzero(passes)
