"""Code of CPython 3.14's JIT, found in memory by how each trace begins, and the rules of its instructions."""

from __future__ import annotations

import random

import pytest

from bpfprof.code.jit_traces import find_traces, trace_object
from bpfprof.elf.cfi.rules import CfaKind
from bpfprof.elf.image import ElfImage
from bpfprof.proc.memory import CopiedMemory
from bpfprof.unwind.cache import decode_rows
from bpfprof.unwind.rows import find

START, PAGE = 0x7F12_3456_0000, 4096
# As clang 19 has compiled Tools/jit/shim.c of v3.14.0, and the offset of the CFA from rsp at each instruction.
SHIM = bytes.fromhex("4157 4156 4155 4154 53 4989fc 4989f5 4989d6 e80a000000 5b 415c 415d 415e 415f c3")
SHIM_OFFSETS = {0: 8, 2: 16, 4: 24, 6: 32, 8: 40, 9: 48, 18: 48, 23: 48, 24: 40, 26: 32, 28: 24, 30: 16, 32: 8}
# test %al, %al; je 1f; push %rax; call *behind; lea 8(%rsp), %rsp; jmp 2f; nop; nop; 1: nop; 2: nop; ret
TRACE = bytes.fromhex("84c0 7410 50 ff1500000000 488d642408 eb03 909090 90 c3")
# By place in it: 4 is the push, 5 the call, 11 what takes the stack back, 16 a jmp, 22 the ret.
TRACE_OFFSETS = {0: 8, 4: 8, 5: 16, 11: 16, 16: 8, 21: 8, 22: 8}


def pages(trace: bytes = TRACE) -> bytes:
    """A trace with the addresses that it loads behind it; its call's is the first one."""
    code = SHIM + trace
    call = len(SHIM) + 5
    code = code[: call + 2] + (len(code) - call - 6).to_bytes(4, "little") + code[call + 6 :]
    return (code + bytes.fromhex("60b66f0000000000") * 3).ljust(PAGE, b"\0")


def memory(content: bytes) -> CopiedMemory:
    return CopiedMemory([(START, content)])


def test_every_instruction_has_its_rule() -> None:
    found = trace_object(START, pages())
    assert found is not None
    assert (found.start, found.end, found.bias) == (START, START + len(SHIM) + len(TRACE), START)
    with ElfImage.from_bytes(found.content, "made") as image:
        table, rows = decode_rows(image)
    offsets = {**SHIM_OFFSETS, **{len(SHIM) + place: offset for place, offset in TRACE_OFFSETS.items()}}
    for place, offset in offsets.items():
        rule = rows[find(table, place)]
        assert (rule["cfa_kind"], rule["cfa_offset"], rule["ra_offset"]) == (CfaKind.RSP, offset, -8), hex(place)


def test_each_begins_on_a_page() -> None:
    two_pages = pages().ljust(2 * PAGE, b"\x90")
    content = two_pages + pages() + pages()[5:] + bytes(5)
    found = list(find_traces(memory(content), START, START + len(content)))  # type: ignore[arg-type]
    assert [(start - START, len(code)) for start, code in found] == [(0, 2 * PAGE), (2 * PAGE, 2 * PAGE)]


def test_other_memory_is_left_alone() -> None:
    for content in (bytes(PAGE), b"\x55\x48\x89\xe5" * 1024, pages()[5:] + bytes(5), SHIM[:20]):
        assert not list(find_traces(memory(content), START, START + PAGE))  # type: ignore[arg-type]
    assert trace_object(START, SHIM.ljust(PAGE, b"\x06")) is None, "no instruction of 64 bit mode"


@pytest.mark.parametrize("seed", range(40))
def test_damaged_code_costs_no_more_than_its_rules(seed: int) -> None:
    chance = random.Random(seed)
    content = bytearray(pages())
    for _ in range(chance.randrange(1, 9)):
        content[chance.randrange(len(SHIM), 80)] = chance.randrange(256)
    for start, code in find_traces(memory(bytes(content)), START, START + PAGE):  # type: ignore[arg-type]
        found = trace_object(start, code)
        if found is not None:
            with ElfImage.from_bytes(found.content, "made") as image:
                decode_rows(image)
