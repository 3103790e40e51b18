"""Where rsp is below the frame, by a function's instructions, in code that is built with frame pointers."""

from __future__ import annotations

import pytest

from bpfprof.elf.asm.stack_pointer_rule import stack_pointer_rule
from bpfprof.elf.cfi.rules import CfaKind, FramePointerKind

PUSH_RBP, MOV_RBP_RSP = b"\x55", b"\x48\x89\xe5"
PUSH_R13_R12_RBX, SUB_RSP_40 = b"\x41\x55\x41\x54\x53", b"\x48\x83\xec\x28"
POP_RBX_R12_R13_RBP_RET = b"\x48\x83\xc4\x28\x5b\x41\x5c\x41\x5d\x5d\xc3"
SYSCALL, NOP, LEAVE_RET, SUB_RSP_RAX = b"\x0f\x05", b"\x90", b"\xc9\xc3", b"\x48\x29\xc4"
AND_RSP = b"\x48\x83\xe4\xc0"


def jump_if_zero(over: bytes) -> bytes:
    return bytes((0x74, len(over)))


@pytest.mark.parametrize(
    ("code", "below"),
    [
        (PUSH_RBP + MOV_RBP_RSP + SYSCALL, 16),
        (PUSH_RBP + MOV_RBP_RSP + PUSH_R13_R12_RBX + SUB_RSP_40 + SYSCALL, 16 + 24 + 40),
        # What returns before the call is jumped over.
        (
            PUSH_RBP
            + MOV_RBP_RSP
            + PUSH_R13_R12_RBX
            + SUB_RSP_40
            + jump_if_zero(POP_RBX_R12_R13_RBP_RET)
            + POP_RBX_R12_R13_RBP_RET
            + SYSCALL,
            16 + 24 + 40,
        ),
        # What is jumped to comes after the call, and is not there.
        (PUSH_RBP + MOV_RBP_RSP + SUB_RSP_40 + jump_if_zero(NOP * 9) + NOP + SYSCALL, 16 + 40),
    ],
)
def test_a_frame_is_told_by_what_was_done_to_rsp(code: bytes, below: int) -> None:
    for starts in ([0], [0, len(code)]):
        rule = stack_pointer_rule(code, starts)
        assert rule is not None
        assert (rule[0], rule[1], rule[4], rule[5], rule[6]) == (CfaKind.RSP, FramePointerKind.AT_CFA, below, -16, -8)


@pytest.mark.parametrize(
    "code",
    [
        PUSH_RBP + MOV_RBP_RSP + SUB_RSP_RAX + SYSCALL,  # room for an array of any length
        PUSH_RBP + MOV_RBP_RSP + AND_RSP + SYSCALL,  # aligned: it depends on the caller
        PUSH_RBP + MOV_RBP_RSP + LEAVE_RET + SYSCALL,  # nothing comes by
        PUSH_RBP + MOV_RBP_RSP + jump_if_zero(SUB_RSP_40) + SUB_RSP_40 + SYSCALL,  # two ways, two stacks
        b"\x06" + SYSCALL,  # no instruction of 64-bit code
        b"",
    ],
)
def test_what_cannot_be_told_is_not(code: bytes) -> None:
    assert stack_pointer_rule(code, [0]) is None


def test_what_is_too_long_is_not_followed() -> None:
    assert stack_pointer_rule(PUSH_RBP + NOP * (1 << 15) + SYSCALL, [0]) is None


def test_the_nearest_place_that_leads_there_is_where_the_function_begins() -> None:
    other = SUB_RSP_40 + b"\xc3"
    code = other + PUSH_RBP + MOV_RBP_RSP + SYSCALL
    assert (stack_pointer_rule(code, [0, len(other)]) or [0] * 7)[4] == 16
