"""What a caller may ask of a profile; see `build_profile`."""

from __future__ import annotations

import re
from dataclasses import field

from bpfprof.dataclass import dataclass
from bpfprof.model.states import ThreadState

# States of a thread off the CPU, as sched_switch has them (include/linux/sched.h), by their letters in ps and names.
# TASK_IDLE, of kernel threads without work, is TASK_UNINTERRUPTIBLE with TASK_NOLOAD: here it is the latter alone.
UNINTERRUPTIBLE, NO_LOAD = 2, 0x400
_STATES = {"S": 1, "D": UNINTERRUPTIBLE, "T": 4 | 8, "I": NO_LOAD, "P": 0x40}
_NAMES = {
    **{"interruptible": 1, "uninterruptible": UNINTERRUPTIBLE, "stopped": 4, "traced": 8},
    **{"idle": NO_LOAD, "parked": 0x40},
}


OPEN_END_NS = 1 << 62  # of a window
ON_CPU = frozenset((ThreadState.ON_CPU,))
OFF_CPU = frozenset((ThreadState.RUNQUEUE, ThreadState.OFF_CPU))


@dataclass(frozen=True)
class SpanFilter:
    """Which spans are shown: those that pass all that is set."""

    window_ns: tuple[int, int] | None = None  # from, to, since the recording began; spans are cut to it
    process: re.Pattern[str] | None = None  # somewhere in `NAME (PID)`
    thread: re.Pattern[str] | None = None  # somewhere in `NAME (TID)`
    function: re.Pattern[str] | None = None  # somewhere in the name of one of the stack's functions
    states: frozenset[ThreadState] = frozenset()  # empty: all
    reasons: tuple[str, ...] = ()  # only waits with one of these
    holds_gil: bool = False
    # Of waits; the others do not pass with any of them.
    task_states: int = 0  # a mask as task_states() gives, 0: every state
    min_block_ns: int = 0
    hides_idle: bool = False  # leaves out waits of threads with nothing to do, and nothing else

    @property
    def is_of_threads(self) -> bool:
        """Whether all time of the threads that are shown passes, as far as it is in the window."""
        is_every_state = not self.states or self.states >= ON_CPU | OFF_CPU
        chosen = (self.function, self.reasons, self.holds_gil, self.task_states, self.min_block_ns)
        return is_every_state and not any(chosen)

    @property
    def chooses_threads(self) -> bool:
        """Whether some are left out by their names or those of their processes."""
        return self.process is not None or self.thread is not None

    @property
    def text(self) -> str:
        """`, in state uninterruptible, of 1000 us or more`; "" of all spans."""
        parts = []
        if self.window_ns:
            begin, end = (f"{limit / 1e9:g} s" if limit < OPEN_END_NS else "the end" for limit in self.window_ns)
            parts.append(f"from {begin} to {end}")
        for name in ("process", "thread", "function"):
            pattern = getattr(self, name)
            parts += [f"{name} {pattern.pattern}"] if pattern else []
        if self.states in (ON_CPU, OFF_CPU):
            parts.append("on a CPU" if self.states == ON_CPU else "off the CPU")
        if self.reasons:
            parts.append("reason " + " or ".join(self.reasons))
        if self.holds_gil:
            parts.append("holding the GIL")
        names = [name for name, state in _NAMES.items() if self.task_states & state]
        other = self.task_states & ~sum(_NAMES.values())
        if self.task_states:
            parts.append("in state " + " or ".join([*names, *[f"0x{other:x}"] * bool(other)]))
        if self.hides_idle:
            parts.append("what is not idle")
        if self.min_block_ns:
            parts.append(f"of {self.min_block_ns // 1000:,} us or more")
        return "".join(f", {part}" for part in parts)


@dataclass(frozen=True)
class ProfileOptions:
    """Choices that change what a profile holds."""

    with_spans: bool = False  # keep the spans themselves, with their order in time
    show_interpreter: bool = False  # CPython's own functions stay in the stacks
    filter: SpanFilter = field(default_factory=SpanFilter)
    with_samples: bool = False  # and when each sample was taken
    adds_up: bool = False  # spans that nothing but their time tells apart are one, in no order
    with_pieces: bool = False  # where they are, beside them their times one by one
    piece_parts: int = 0  # of the recording's time; in each some of these are one, see Profile.pieces_ns
    with_concurrency: bool = False  # how many threads ran at a time
    has_whole_waits: bool = False  # then the parts of one wait for a GIL have one waker, and their holders are kept


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
