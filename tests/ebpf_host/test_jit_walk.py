"""Code of CPython 3.14's JIT: both sides leave it for the evaluation function, by its shim alone."""

from __future__ import annotations

import struct

import pytest

from bpfprof import abi
from bpfprof.unwind.interpret import Registers, Rule, Stop, walk_by
from tests.ebpf_host.host import CONFIG, PROCESS, STATUS, Host, Segment, mapping_array, pt_regs
from tests.ebpf_host.native_image import CALL, CODE, END, STACK, install_rules
from tests.ebpf_host.oracle import reader

TRACE, ELSEWHERE = 0x7F12_3456_0000, 0x7F12_9999_9000
# As clang 19 has compiled Tools/jit/shim.c of v3.14.0; then a trace.
SHIM = bytes.fromhex("4157 4156 4155 4154 53 4989fc 4989f5 4989d6 e80a000000 5b 415c 415d 415e 415f c3")
IN_SHIM = TRACE + SHIM.index(b"\xe8") + 5
SAVED = [0x11, TRACE, 0, ELSEWHERE + 0x10, 0x22]  # registers: some look like addresses in shims
ROOM = [0, ELSEWHERE + 0x17, STACK + 8, CALL + 1]  # what a template has on the stack
FLAGS = PROCESS["BP_PROCESS_UNWIND"] | PROCESS["BP_PROCESS_MAKES_CODE"]


def walked(host: Host, words: list[int], bp: int | None, leaf: int, has_jit: bool = True) -> tuple[list[int], int]:
    """The kernel side's walk of a stack of these words, and that of user space, which has to be the same."""
    stack: Segment = (STACK, struct.pack(f"<{len(words)}Q", *words))
    segments = [stack, (TRACE, SHIM.ljust(256, b"\x90")), (ELSEWHERE, bytes(256))]
    host.set_user_memory(segments)
    host.set_registers(pt_regs(Registers(leaf, STACK, bp or 0, {})))
    found = host.stack()

    def rule_at(pc: int) -> Rule | Stop:
        if not CODE <= pc < CODE + 0x1000:
            return Stop.NO_MAPPING
        ends = pc >= END & ~0xFFF | 0x800
        kind = abi.ENUMS["bp_cfa_kind"]["BP_CFA_END_OF_STACK" if ends else "BP_CFA_RSP"]
        return {"cfa_kind": kind, "fp_kind": 0, "flags": 0, "cfa_extra": 0, "cfa_offset": 16, "ra_offset": -8}

    walk = walk_by(
        Registers(leaf, STACK, bp), reader(segments), rule_at, is_jit=lambda pc: has_jit and pc >> 40 == TRACE >> 40
    )
    assert [pc & (1 << 63) - 1 for pc in walk.pcs] == list(found.pcs)
    return list(found.pcs), int(found.native_status)


@pytest.fixture
def index(host: Host) -> int:
    """Of mappings without the trace: it was made a moment ago."""
    index = install_rules(host)
    host.set_config(CONFIG["BP_CONFIG_NATIVE"])
    host.set_process(FLAGS, index, 1, layout=abi.pack("bp_python_layout", jit_has_no_frames=1))
    return index


def stack_words(room: list[int]) -> list[int]:
    """What a template has, the shim's, and the evaluation function's caller."""
    return [*room, IN_SHIM, *SAVED, CALL + 1, 0, END + 1, 0, 0]


@pytest.mark.parametrize("leaf", [TRACE + 0x40, TRACE + 0x5040], ids=["its trace", "another trace"])
@pytest.mark.parametrize("room", [[], [0], ROOM, [0] * 25 + [STACK + 0x400]], ids=len)
def test_the_evaluation_function_is_next(host: Host, index: int, leaf: int, room: list[int]) -> None:
    pcs, status = walked(host, stack_words(room), STACK + 0x300, leaf)
    assert pcs == [leaf, CALL + 1, END + 1] and status == STATUS.BP_OK


def test_without_a_shim_it_is_code_in_no_mapping(host: Host, index: int) -> None:
    words = [ELSEWHERE + 0x17 if word == IN_SHIM else word for word in stack_words(ROOM)]
    assert walked(host, words, STACK + 0x300, TRACE + 0x40) == ([TRACE + 0x40], STATUS.BP_NATIVE_NO_MAPPING)


def test_a_shim_that_is_too_far_up_is_of_another_call(host: Host, index: int) -> None:
    words = stack_words([0] * 80)
    assert walked(host, words, STACK + 0x300, TRACE + 0x40) == ([TRACE + 0x40], STATUS.BP_NATIVE_NO_MAPPING)


@pytest.mark.parametrize(("flags", "has_no_frames"), [(PROCESS["BP_PROCESS_UNWIND"], 1), (FLAGS, 0)])
def test_other_processes_have_no_such_code(host: Host, index: int, flags: int, has_no_frames: int) -> None:
    host.set_process(flags, index, 1, layout=abi.pack("bp_python_layout", jit_has_no_frames=has_no_frames))
    found = walked(host, stack_words([]), STACK + 0x300, TRACE + 0x40, has_jit=False)
    assert found == ([TRACE + 0x40], STATUS.BP_NATIVE_NO_MAPPING)


@pytest.mark.parametrize(
    ("bp", "room", "expected"),
    [
        (STACK + 0x200, [], STACK + 0x200),
        (0xDEAD, [STACK + 0x208], STACK + 0x208),
        (STACK + 8, [STACK + 0x208, 0, 0], STACK + 0x208),
        (0xDEAD, [0x10], None),
    ],
    ids=["in rbp", "pushed", "pushed, rbp is of the template", "lost"],
)
def test_its_frame_pointer(bp: int, room: list[int], expected: int | None) -> None:
    """The evaluation function's caller is found by it, if it is known."""
    words = [*room, IN_SHIM, *SAVED, CODE + 0x21]
    words += [0] * (0x300 // 8 - len(words))
    for place in (0x200, 0x208):
        words[place // 8 + 1] = 0
    if expected is not None:
        words[(expected - STACK) // 8 + 1] = END + 1
    segments: list[Segment] = [(STACK, struct.pack(f"<{len(words)}Q", *words)), (TRACE, SHIM.ljust(256, b"\x90"))]

    def rule_at(pc: int) -> Rule | Stop:
        if not CODE <= pc < CODE + 0x1000:
            return Stop.NO_MAPPING
        kinds = abi.ENUMS["bp_cfa_kind"]
        kind = kinds["BP_CFA_END_OF_STACK" if pc >= END else "BP_CFA_RBP"]
        rule = {"cfa_kind": kind, "fp_kind": 0, "flags": 0, "cfa_extra": 0}
        return {**rule, "cfa_offset": 16, "fp_offset": -16, "ra_offset": -8}

    registers = Registers(TRACE + 0x40, STACK, bp)
    walk = walk_by(registers, reader(segments), rule_at, is_jit=lambda pc: pc >> 40 == TRACE >> 40)
    assert walk.pcs[:2] == (TRACE + 0x40, CODE + 0x21)
    if expected is None:
        assert walk.stop is Stop.UNSUPPORTED
    else:
        assert walk.pcs[2:] == (END + 1,) and walk.stop is Stop.END_OF_STACK


def test_a_trace_in_memory_that_is_mapped(host: Host, index: int) -> None:
    memory = host.unwind_memory()
    memory.set_frame_pointers(2)
    index = memory.add_mappings(mapping_array([(TRACE, TRACE + 0x1000, 0, 2)]))
    host.set_process(FLAGS, index, 1, layout=abi.pack("bp_python_layout", jit_has_no_frames=1))
    host.set_user_memory(
        [(STACK, struct.pack("<14Q", *stack_words([0])[:11], 0, 0, 0)), (TRACE, SHIM.ljust(256, b"\x90"))]
    )
    host.set_registers(pt_regs(Registers(TRACE + 0x40, STACK, STACK + 0x300, {})))
    found = host.stack()
    assert list(found.pcs) == [TRACE + 0x40, CALL + 1]
