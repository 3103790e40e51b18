"""One step of each kind of rule, and each way a walk ends, on memory written by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof.elf.cfi.rules import FLAG_SIGNAL, RULE, CfaKind, FramePointerKind, Rules
from bpfprof.model.ids import RuntimeAddress
from bpfprof.unwind.interpret import MappedFile, Registers, Stop, Walk, walk
from bpfprof.unwind.rows import FileRows

BIAS = 0x5000_0000_0000
CODE = BIAS + 0x1000
END = CODE + 0x800  # from here on: the end of the stack
STACK = 0x7FFF_0000_0000
SAME, AT_CFA = FramePointerKind.SAME, FramePointerKind.AT_CFA

Memory = dict[int, int]


def row(offset: int, rule: int) -> int:
    return offset << 20 | rule


def step(
    rule: tuple[int, ...], memory: Memory, pc: int = CODE + 0x10, sp: int = STACK, bp: int = 0, **more: object
) -> Walk:
    """A walk whose first frame has this rule; it ends well when the caller is at END + 1 or later."""
    rules = np.array([(0,) * 7, (CfaKind.UNSUPPORTED, *(0,) * 6), rule, (CfaKind.END_OF_STACK, *(0,) * 6)], RULE)
    return walk(Registers(pc, sp, bp, **more), memory.get, files(row(0, 2), row(0x800, 3)), rules)  # type: ignore[arg-type]


def files(*rows: int) -> list[MappedFile]:
    table = FileRows(1, np.array([1, 1 + len(rows)], np.uint32), np.array([0, *rows], np.uint32))
    return [MappedFile(RuntimeAddress(CODE), RuntimeAddress(CODE + 0x1000), BIAS, table)]


RETURN = END + 5
STEPS: dict[str, tuple[tuple[int, ...], Memory, dict[str, object]]] = {
    "rsp": ((CfaKind.RSP, SAME, 0, 0, 32, 0, -8), {STACK + 24: RETURN}, {}),
    "rbp": ((CfaKind.RBP, AT_CFA, 0, 0, 16, -16, -8), {STACK + 0x58: RETURN, STACK + 0x50: 7}, {"bp": STACK + 0x50}),
    "other register": ((CfaKind.REGISTER, SAME, 0, 10, 0, 0, -8), {STACK + 56: RETURN}, {"others": {10: STACK + 64}}),
    "deref rbp": (
        (CfaKind.DEREF_RBP, FramePointerKind.AT_RBP, 0, 0, -8, 0, -8),
        {STACK + 0x48: STACK + 0x90, STACK + 0x50: 7, STACK + 0x88: RETURN},
        {"bp": STACK + 0x50},
    ),
    "deref rsp": (
        (CfaKind.DEREF_RSP, SAME, 0, 8, 16, 0, -8),
        {STACK + 16: STACK + 0x90, STACK + 0x90: RETURN},
        {},
    ),
    "plt before the push": ((CfaKind.PLT, SAME, 0, 11, 8, 0, -8), {STACK: RETURN}, {"pc": CODE + 10}),
    "plt after the push": ((CfaKind.PLT, SAME, 0, 11, 8, 0, -8), {STACK + 8: RETURN}, {"pc": CODE + 11}),
    "signal": (
        (CfaKind.SIGNAL_FRAME, FramePointerKind.AT_RSP, FLAG_SIGNAL, 0, 160, 120, 168),
        {STACK + 160: STACK - 0x1000, STACK + 120: 7, STACK + 168: RETURN},
        {},
    ),
}


@pytest.mark.parametrize(("rule", "memory", "registers"), STEPS.values(), ids=STEPS)
def test_a_step(rule: tuple[int, ...], memory: Memory, registers: dict[str, object]) -> None:
    found = step(rule, memory, **registers)  # type: ignore[arg-type]
    assert found.pcs[1:] == (RETURN,)
    assert found.stop == Stop.END_OF_STACK


RSP_8 = (CfaKind.RSP, SAME, 0, 0, 8, 0, -8)
STOPS: dict[str, tuple[Stop, tuple[int, ...], Memory, dict[str, object]]] = {
    "unsupported": (Stop.UNSUPPORTED, (CfaKind.UNSUPPORTED, *(0,) * 6), {}, {}),
    "no rule": (Stop.NO_RULE, (CfaKind.NO_RULE, *(0,) * 6), {}, {}),
    "end of stack": (Stop.END_OF_STACK, (CfaKind.END_OF_STACK, *(0,) * 6), {}, {}),
    "nowhere": (Stop.NO_MAPPING, RSP_8, {}, {"pc": 5}),
    "behind the mapping": (Stop.NO_MAPPING, RSP_8, {}, {"pc": CODE + 0x1000}),
    "unreadable": (Stop.UNREADABLE, RSP_8, {}, {}),
    "register not known": (Stop.UNSUPPORTED, (CfaKind.REGISTER, SAME, 0, 10, 0, 0, -8), {}, {}),
    "down": (Stop.NOT_GROWING, (CfaKind.RBP, SAME, 0, 0, 16, 0, -8), {}, {"bp": STACK - 16}),
    "nothing to dereference": (Stop.UNREADABLE, (CfaKind.DEREF_RBP, SAME, 0, 0, -8, 0, -8), {}, {"bp": STACK}),
    "null": (Stop.END_OF_STACK, RSP_8, {STACK: 0}, {}),
    "saved rbp unreadable": (Stop.UNREADABLE, (CfaKind.RSP, AT_CFA, 0, 0, 16, -16, -8), {STACK + 8: RETURN}, {}),
}


@pytest.mark.parametrize(("stop", "rule", "memory", "registers"), STOPS.values(), ids=STOPS)
def test_a_stop(stop: Stop, rule: tuple[int, ...], memory: Memory, registers: dict[str, object]) -> None:
    found = step(rule, memory, **registers)  # type: ignore[arg-type]
    assert found.stop == stop and len(found.pcs) == 1


def rules_of(*rules: tuple[int, ...]) -> Rules:
    return np.array([(0,) * 7, (CfaKind.UNSUPPORTED, *(0,) * 6), *rules], RULE)


def test_a_call_that_is_the_last_instruction() -> None:
    """Its return address is in the next function, whose rule would be wrong; after a signal it is as it stands."""
    end = (CfaKind.END_OF_STACK, *(0,) * 6)
    code = files(row(0, 2), row(0x100, 3), row(0x200, 4))
    call = walk(Registers(CODE, STACK, 0), {STACK: CODE + 0x200}.get, code, rules_of(RSP_8, end, (0,) * 7))
    assert call.stop == Stop.END_OF_STACK and call.pcs == (CODE, CODE + 0x200)
    signal = (CfaKind.RSP, SAME, FLAG_SIGNAL, 0, 8, 0, -8)
    interrupted = walk(Registers(CODE, STACK, 0), {STACK: CODE + 0x200}.get, code, rules_of(signal, end, (0,) * 7))
    assert interrupted.stop == Stop.NO_RULE


def test_a_lost_rbp_ends_the_walk_where_it_is_needed() -> None:
    lost = (CfaKind.RSP, FramePointerKind.LOST, 0, 0, 8, 0, -8)
    code = files(row(0, 2), row(0x100, 3))
    found = walk(
        Registers(CODE, STACK, STACK), {STACK: CODE + 0x180}.get, code, rules_of(lost, (CfaKind.RBP, *RSP_8[1:]))
    )
    assert found.stop == Stop.UNSUPPORTED and len(found.pcs) == 2


def test_deep_recursion_is_cut() -> None:
    memory = {STACK + 8 * index: CODE + 0x10 for index in range(300)}
    found = walk(Registers(CODE, STACK, 0), memory.get, files(row(0, 2)), rules_of(RSP_8), max_frames=127)
    assert found.stop == Stop.TOO_DEEP and len(found.pcs) == 127
