"""Where a function has its caller, told from rsp alone, where its own rule needs a register that is not known.

Code that is built with frame pointers, as all of Ubuntu 24.04 and Fedora 38 is, has rules by rbp. Of a thread that
sleeps /proc tells rsp and no other register. How far that is below the frame the function's instructions tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpfprof.elf.asm.lengths import PADDING_BYTES
from bpfprof.elf.asm.stack_tracking import CannotTell, Tracker
from bpfprof.elf.asm.traced_rules import decode
from bpfprof.elf.cfi.rules import CfaKind, RuleFields

LONGEST_BYTES = 16 << 10  # of code that is followed
_STEPS = 4096
_MOST_STARTS = 4


def stack_pointer_rule(code: bytes, starts: Sequence[int]) -> RuleFields | None:
    """The rule, by rsp, at the end of `code`; None where that can't be told.

    starts: places in it, ascending, at which a function may begin: rsp + 8 is the frame, and rbp is the caller's.
    """
    for start in reversed(starts[-_MOST_STARTS:]):
        if not 0 <= start < len(code) or len(code) - start > LONGEST_BYTES:
            continue
        padded = code[start:] + bytes(PADDING_BYTES)
        end = np.array([len(code) - start])
        instructions, sound = decode(np.frombuffer(padded, np.uint8), np.zeros(1, np.int64), end)
        if not sound.all():
            continue
        try:
            rows = Tracker(padded, instructions, 0, len(instructions.at)).rows(_STEPS)
        except CannotTell:
            continue
        rule = rows[-1][1] if rows else None
        if rule is not None:
            return rule if rule[0] == CfaKind.RSP else None
    return None
