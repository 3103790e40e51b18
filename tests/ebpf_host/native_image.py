"""Code with unwind rules, written by hand: at some of its addresses something is known to be called."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpfprof.elf.cfi.rules import FLAG_IN_REGISTER, FLAG_SIGNAL, RULE, CfaKind, FramePointerKind
from bpfprof.unwind.rows import FileRows
from tests.ebpf_host.host import Host, Segment, mapping_array

CODE, STACK = 0x5555_0000_0000, 0x7FFC_4400_0000
CALL, SIGNAL, END, IN_RBX = (CODE + at for at in (0x10, 0x410, 0x810, 0xC10))  # addresses that have these rules
SAME = FramePointerKind.SAME
CALL_BYTES = 16  # of a frame that is left by the rule at CALL


def install_rules(host: Host, call_bytes: int = CALL_BYTES) -> int:
    """Puts the code where the programs look; the index of the process's only mapping."""
    memory = host.unwind_memory()
    rules = np.array(
        [
            (0,) * 7,
            (CfaKind.UNSUPPORTED, *(0,) * 6),
            (CfaKind.RSP, SAME, 0, 0, call_bytes, 0, -8),
            (CfaKind.SIGNAL_FRAME, SAME, FLAG_SIGNAL, 0, 160, 0, 168),
            (CfaKind.END_OF_STACK, SAME, 0, 0, 0, 0, 0),
            (CfaKind.RSP, SAME, FLAG_IN_REGISTER, 0, call_bytes, 0, 3),
        ],
        RULE,
    )
    rows = np.array([0, 2, 0x400 << 20 | 3, 0x800 << 20 | 4, 0xC00 << 20 | 5], np.uint32)
    memory.set_file(1, FileRows(0, np.array([1, 5], np.uint32), rows), rules)
    return memory.add_mappings(mapping_array([(CODE, CODE + 0x1000, CODE, 1)]))


def call_stack(pcs: Sequence[int], call_bytes: int = CALL_BYTES, start: int = STACK) -> Segment:
    """The stack of a thread that is at the first of these addresses, was called at the second, and so on."""
    words = np.zeros(call_bytes // 8 * len(pcs) + 2, "<u8")
    for n, pc in enumerate(pcs[1:], 1):
        words[call_bytes // 8 * n - 1] = pc
    return start, words.tobytes()
